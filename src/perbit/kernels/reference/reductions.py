"""Range, moments and bucket norms in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import F32, U64
from perbit.kernels.reference.checks import pieces, require

_LANES = 16
_BLOCK = 65536
_HISTOGRAM_BINS = 2048


def scan(x: F32) -> tuple[float, float, int]:
    if len(x) == 0:
        return 0.0, 0.0, 0
    nonfinite = sum(int(np.count_nonzero(~np.isfinite(x[piece]))) for piece in pieces(len(x)))
    if nonfinite:
        return 0.0, 0.0, nonfinite
    return float(x.min()) + 0.0, float(x.max()) + 0.0, 0  # -0 becomes +0


def _lane_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums of each row of up to a block of values: lanes accumulate in order, then fold.

    Reducing an axis that is not the innermost one adds whole rows of lanes in order, as the contract asks
    (a test compares it with a plain loop).
    """
    rows, n = values.shape
    padded = np.zeros((rows, -(-n // _LANES), _LANES))
    padded.reshape(rows, -1)[:, :n] = values
    lanes = np.add.reduce(padded, axis=1)
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0] + 0.0


def moments(x: F32, hist: U64 | None = None) -> tuple[float, float, float, float, int]:
    total, total_abs, total_sq, max_abs, n_zero = 0.0, 0.0, 0.0, 0.0, 0
    require(hist is None or len(hist) == _HISTOGRAM_BINS, "hist must have 2048 entries")
    for begin in range(0, len(x), _BLOCK):
        block = x[begin : begin + _BLOCK]
        wide = block.astype(np.float64)
        size = np.abs(wide)
        sums = _lane_sum(np.stack([wide, size, wide * wide]))
        total, total_abs, total_sq = total + float(sums[0]), total_abs + float(sums[1]), total_sq + float(sums[2])
        max_abs = max(max_abs, float(size.max()))
        n_zero += int(np.count_nonzero(block == 0))
        if hist is not None:
            bins = block.view(np.uint32) >> np.uint32(20) & np.uint32(_HISTOGRAM_BINS - 1)
            hist += np.bincount(bins, minlength=_HISTOGRAM_BINS).astype(np.uint64)
    return total, total_abs, total_sq, max_abs, n_zero


def _sum_sq(rows: F32) -> NDArray[np.float64]:
    total = np.zeros(len(rows))
    for begin in range(0, rows.shape[1], _BLOCK):
        wide = rows[:, begin : begin + _BLOCK].astype(np.float64)
        total += _lane_sum(wide * wide)
    return total


def _norms(rows: F32, kind: str) -> F32:
    if kind == "max":
        largest: F32 = np.abs(rows).max(axis=1)
        return largest
    with np.errstate(over="ignore"):
        return np.sqrt(_sum_sq(rows)).astype(np.float32)


def bucket_norms(x: F32, bucket: int, kind: str) -> F32:
    require(bucket > 0, "bucket must be positive")
    require(kind in ("l2", "max"), "kind must be 'l2' or 'max'")
    whole = len(x) // bucket
    out = np.empty(-(-len(x) // bucket), dtype=np.float32)
    at_once = max(1, _BLOCK // bucket)
    for first in range(0, whole, at_once):
        last = min(whole, first + at_once)
        out[first:last] = _norms(x[first * bucket : last * bucket].reshape(-1, bucket), kind)
    if whole < len(out):
        out[whole:] = _norms(x[whole * bucket :].reshape(1, -1), kind)
    return out
