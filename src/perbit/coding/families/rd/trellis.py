"""Fitting a trellis quantizer to values: where the cells near zero have their mean, and what each of them costs.

Values are in steps. Level k stands for 2k + 1/2 steps in one half of the grid and for the mirror image in the other (kernels/trellis.hpp).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perbit.coding.families.modelled import FLOAT_MAX
from perbit.kernels import K
from perbit.kernels.api import F32, Symbols

SLOPE = 0.25  # λ: what a bit may cost, in squares of the step
LIMITS = {np.uint8: 252.0, np.uint16: 4092.0}  # largest magnitude, in steps, that symbols of a type reach
ZERO = {np.uint8: 128, np.uint16: 2048}  # the symbol of k = 0
SHIFTED = 3  # k from -3 to 3 send the mean of their cell
SHIFT_UNIT = 1 / 64
_NEAR = 8  # k in -8 .. 7 have rates of their own
_SAMPLE, _BLOCKS, _ROUNDS = 1 << 13, 8, 2
_FEWEST = 8  # values in a cell for its mean to be trusted

F64 = NDArray[np.float64]
SymbolType = type[np.uint8] | type[np.uint16]


@dataclass(frozen=True, eq=False)
class Trellis:
    """One machine with its tables, for symbols of one type."""

    kind: SymbolType
    shifts: NDArray[np.int8]  # of k = -3 .. 3, in units
    rates: F32  # of k = -8 .. 7, times λ
    slope: float  # by which rates grow beyond, per two k

    def encode(self, values: F32) -> Symbols:
        """The symbols of values in steps."""
        symbols: Symbols = np.empty(values.size, self.kind)
        K.trellis_encode(values, 1.0, _near_shifts(self.shifts), self.rates, self.slope, symbols)
        return symbols

    def table(self, step: float) -> F32:
        return table_of(self.shifts, self.kind, step)


def table_of(shifts: NDArray[np.int8], kind: SymbolType, step: float) -> F32:
    """What each symbol stands for in the first half of the grid, with the parity of k as its lowest bit."""
    zero = ZERO[kind]
    points: F64 = 2 * np.arange(-zero, zero, dtype=np.float64) + 0.5
    points[zero - SHIFTED : zero + SHIFTED + 1] += shifts * SHIFT_UNIT
    return _with_parity(saturated(points * step))


def saturated(values: F64) -> F32:
    """As float32, never infinite."""
    result: F32 = np.clip(values, -FLOAT_MAX, FLOAT_MAX).astype(np.float32)
    return result


def largest_magnitude(values: F32) -> float:
    """Of finite values; 0 if there are none."""
    return max(map(abs, K.scan(values)[:2]))


def _with_parity(table: F32) -> F32:
    bits = table.view(np.uint32)
    bits[:] = bits & np.uint32(0xFFFFFFFE) | np.arange(bits.size, dtype=np.uint32) & np.uint32(1)
    return table


def fit(values: F32, kind: SymbolType, *, with_shifts: bool) -> Trellis:
    """The machine for values in steps: starts from a Laplace distribution, learns from what a sample becomes."""
    sample = _sample(values)
    machine = _laplace(sample, kind)
    for _ in range(_ROUNDS):
        machine = _learnt(sample, machine.encode(sample), kind)
        if not with_shifts:
            machine = replace(machine, shifts=_no_shifts())
    return machine


def _sample(values: F32) -> F32:
    if values.size <= _SAMPLE:
        return values
    width = _SAMPLE // _BLOCKS
    starts = np.linspace(0, values.size - width, _BLOCKS).astype(int)
    return np.concatenate([values[start : start + width] for start in starts])


def _laplace(sample: F32, kind: SymbolType) -> Trellis:
    mean = max(float(np.abs(sample).mean(dtype=np.float64)), 1e-3)
    near = np.abs(2.0 * np.arange(-_NEAR, _NEAR) + 0.5)
    all_levels = np.exp(-np.abs(2.0 * np.arange(-ZERO[kind], ZERO[kind]) + 0.5) / mean).sum()
    rates = (near / mean + np.log(all_levels)) / np.log(2)
    return Trellis(kind, _no_shifts(), (SLOPE * rates).astype(np.float32), _tail(mean))


def _learnt(sample: F32, symbols: Symbols, kind: SymbolType) -> Trellis:
    zero, levels = ZERO[kind], 2.0 * np.arange(-ZERO[kind], ZERO[kind]) + 0.5
    counts: F64 = np.bincount(symbols, minlength=2 * zero).astype(np.float64)
    sums = np.bincount(symbols, halves(symbols) * sample, minlength=2 * zero)
    near = counts[zero - _NEAR : zero + _NEAR]
    rates = np.log2((sample.size + 0.1 * near.size) / (near + 0.1))
    mean = max(float(np.abs(levels) @ counts) / max(sample.size, 1), 0.1)
    middle = slice(zero - SHIFTED, zero + SHIFTED + 1)
    away = np.where(counts[middle] >= _FEWEST, sums[middle] / np.maximum(counts[middle], 1) - levels[middle], 0)
    shifts = np.clip(np.rint(away / SHIFT_UNIT), -127, 127).astype(np.int8)
    return Trellis(kind, shifts, (SLOPE * rates).astype(np.float32), _tail(mean))


def halves(symbols: Symbols) -> F32:
    """About 1 where a symbol was chosen in the first half of the grid, -1 in the mirrored one."""
    signs = np.empty(symbols.size, np.float32)
    K.dequantize(symbols, _with_parity(np.ones(2 * ZERO[symbols.dtype.type], np.float32)), signs)
    K.trellis_signs(signs)
    return signs


def _tail(mean: float) -> float:
    return float(np.float32(SLOPE * 4 / (mean * np.log(2))))


def _no_shifts() -> NDArray[np.int8]:
    return np.zeros(2 * SHIFTED + 1, np.int8)


def _near_shifts(shifts: NDArray[np.int8]) -> F32:
    near = np.zeros(2 * _NEAR, np.float32)
    near[_NEAR - SHIFTED : _NEAR + SHIFTED + 1] = shifts * SHIFT_UNIT
    return near
