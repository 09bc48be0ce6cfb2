"""Fitting a trellis quantizer to values: where the cells near zero have their mean, and what each of them costs.

Values are in steps. Level k stands for 2k + 1/2 steps in one half of the grid and for the mirror image in the other (kernels/trellis.hpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from perbit.coding.families.modelled import FLOAT_MAX
from perbit.kernels import K, fused
from perbit.kernels.api import F32, U32, Symbols

SLOPE = 0.25  # λ: what a bit may cost, in squares of the step; the kernel that fits has it too
LIMITS = {np.uint8: 252.0, np.uint16: 4092.0}  # largest magnitude, in steps, that symbols of a type reach
ZERO = {np.uint8: 128, np.uint16: 2048}  # the symbol of k = 0
SHIFTED = 3  # k from -3 to 3 send the mean of their cell
SHIFT_UNIT = 1 / 64
_NEAR = 8  # k in -8 .. 7 have rates of their own

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


@fused
def trellis_decode(symbols: Symbols, shifts: NDArray[np.int8], out: F32) -> None:
    """What the other end makes of symbols, in steps."""
    K.dequantize(symbols, table_of(shifts, np.uint8 if symbols.itemsize == 1 else np.uint16, 1.0), out)
    K.trellis_signs(out)


def table_of(shifts: NDArray[np.int8], kind: SymbolType, step: float) -> F32:
    """What each symbol stands for in the first half of the grid, with the parity of k as its lowest bit."""
    zero = ZERO[kind]
    points = _points(zero).copy()
    points[zero - SHIFTED : zero + SHIFTED + 1] += shifts * SHIFT_UNIT
    return _with_parity(saturated(points * step))


@cache
def _points(zero: int) -> F64:
    return 2 * np.arange(-zero, zero, dtype=np.float64) + 0.5


@cache
def _parities(size: int) -> U32:
    return np.arange(size, dtype=np.uint32) & np.uint32(1)


def saturated(values: F64) -> F32:
    """Ascending values as float32, never infinite."""
    fits = values[0] >= -FLOAT_MAX and values[-1] <= FLOAT_MAX
    result: F32 = (values if fits else values.clip(-FLOAT_MAX, FLOAT_MAX)).astype(np.float32)
    return result


def largest_magnitude(values: F32) -> float:
    """Of finite values; 0 if there are none."""
    return max(map(abs, K.scan(values)[:2]))


def _with_parity(table: F32) -> F32:
    bits = table.view(np.uint32)
    bits &= np.uint32(0xFFFFFFFE)
    bits |= _parities(bits.size)
    return table


def fit(values: F32, kind: SymbolType, *, with_shifts: bool) -> Trellis:
    """The machine for values in steps: it learns from what a sample becomes."""
    shifts, rates = np.empty(2 * SHIFTED + 1, np.int8), np.empty(2 * _NEAR, np.float32)
    slope = K.trellis_fit(values, kind is np.uint16, with_shifts, shifts, rates)
    return Trellis(kind, shifts, rates, slope)


def _near_shifts(shifts: NDArray[np.int8]) -> F32:
    near = np.zeros(2 * _NEAR, np.float32)
    near[_NEAR - SHIFTED : _NEAR + SHIFTED + 1] = shifts * SHIFT_UNIT
    return near
