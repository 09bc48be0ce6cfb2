"""Fitting a trellis quantizer in numpy, and what a scalar one would cost (kernels/trellis_fit.hpp, kernels/deadzone.hpp)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import F32, Symbols
from perbit.kernels.reference.checks import float32, require, require_same_length
from perbit.kernels.reference.logarithm import F64, exact_log2
from perbit.kernels.reference.reductions import moments
from perbit.kernels.reference.trellis import trellis_encode, trellis_signs

SAMPLE, STRETCHES, ROUNDS = 8192, 8, 2
FEWEST, UNITS = 8, 64
BIT = 0.25
NAT = BIT / 0.6931471805599453
_K = np.arange(-8, 8)
_POINTS: F64 = 2 * _K.astype(np.float64) + 0.5


def trellis_fit(x: F32, wide: bool, with_shifts: bool, shifts: NDArray[np.int8], rates: F32) -> float:
    require(len(shifts) == 7 and len(rates) == 16, "there are shifts of k = -3 .. 3 and rates of k = -8 .. 7")
    sample = _sample(x)
    size = max(len(sample), 1)
    symbols: Symbols = np.empty(len(sample), np.uint16 if wide else np.uint8)
    mean = max(moments(sample)[1] / size, 1e-3)
    shifts[:], rates[:] = 0, NAT / mean * np.abs(_POINTS)
    for _ in range(ROUNDS):
        near = np.zeros(16, np.float32)
        near[5:12] = shifts / np.float32(UNITS)
        trellis_encode(sample, 1.0, near, rates, float(np.float32(4.0 * NAT / mean)), symbols)
        k = symbols.astype(np.int64) - (2048 if wide else 128)
        mean = max(0.5 * int(np.abs(4 * k + 1).sum()) / size, 0.1)
        counts, sums = _by_cell(k, sample * _halves(k))
        rates[:] = BIT * (exact_log2(np.array([len(sample) + 1.6])) - exact_log2(counts + 0.1))
        if with_shifts:
            means = np.where(counts >= FEWEST, sums / np.maximum(counts, 1), _POINTS)
            shifts[:] = np.clip(np.rint((means - _POINTS) * UNITS), -127, 127)[5:12]
    return float(np.float32(4.0 * NAT / mean))


def _sample(x: F32) -> F32:
    if len(x) <= SAMPLE:
        return x
    width = SAMPLE // STRETCHES
    starts = [(len(x) - width) * i // (STRETCHES - 1) for i in range(STRETCHES)]
    return np.concatenate([x[start : start + width] for start in starts])


def _halves(k: NDArray[np.int64]) -> F32:
    """1 where a level was chosen in the first half of the grid, -1 in the mirrored one."""
    signs = ((k & 1).astype(np.uint32) | np.uint32(0x3F800000)).view(np.float32)
    trellis_signs(signs)
    return np.copysign(np.float32(1), signs)


def _by_cell(k: NDArray[np.int64], values: F32) -> tuple[F64, F64]:
    """How many values each near cell has, and their sum, made in four by turns."""
    at = np.flatnonzero((k >= -8) & (k < 8))
    cell = (at % 4) * 16 + k[at] + 8
    counts = np.bincount(cell, minlength=64).reshape(4, 16)
    sums = np.bincount(cell, values[at].astype(np.float64), minlength=64).reshape(4, 16)
    return counts.sum(axis=0).astype(np.float64), (sums[0] + sums[1]) + (sums[2] + sums[3])


def scalar_cost(x: F32, noise: F32, scale: float, sigma: float, rounding: float) -> tuple[float, float]:
    require_same_length(x, noise)
    if len(x) == 0:
        return 0.0, 0.0
    size = np.abs(x * float32(scale) + noise * float32(sigma))
    levels = np.fmin(np.float32(255), size + float32(rounding)).astype(np.int32)
    counts = np.bincount(levels)
    bits, logarithms = 0.0, exact_log2(np.array([len(x), *counts.tolist()], np.float64).clip(1))
    for level, count in enumerate(counts.tolist()):
        if count:
            bits += count * (float(logarithms[0]) - float(logarithms[level + 1]) + (1.0 if level else 0.0))
    return moments(size - levels.astype(np.float32))[2], bits
