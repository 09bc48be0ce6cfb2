"""Selection of the largest magnitudes, and weighted additions, in numpy."""

from __future__ import annotations

import numpy as np

from perbit.kernels.api import F32, U32
from perbit.kernels.reference.checks import MAX_LENGTH, float32, pieces, require, require_same_length


def top_k(x: F32, k: int) -> U32:
    require(len(x) <= MAX_LENGTH, "positions are 32-bit: the array is too long")
    require(0 <= k <= len(x), "k is larger than the array")
    if k == 0:
        return np.empty(0, dtype=np.uint32)
    size = _magnitudes(x)
    kth = np.partition(size, len(x) - k)[len(x) - k]
    larger = np.flatnonzero(size > kth)
    ties = np.flatnonzero(size == kth)[: k - len(larger)]
    return np.sort(np.concatenate([larger, ties])).astype(np.uint32)


def _magnitudes(x: F32 | np.float32) -> U32:
    """Whole numbers in the order of the magnitudes, NaN above infinity."""
    return np.asarray(x).view(np.uint32) & np.uint32(0x7FFFFFFF)


def select_above(x: F32, threshold: float) -> U32:
    require(len(x) <= MAX_LENGTH, "positions are 32-bit: the array is too long")
    limit = float32(threshold)
    require(bool(limit >= 0), "threshold must not be negative")
    found = [np.flatnonzero(_magnitudes(x[piece]) >= _magnitudes(limit)) + piece.start for piece in pieces(len(x))]
    return np.concatenate([np.empty(0, dtype=np.int64), *found]).astype(np.uint32)


def scatter_add(out: F32, positions: U32, values: F32, weight: float) -> None:
    require_same_length(positions, values)
    require(len(positions) == 0 or int(positions.max()) < len(out), "a position lies outside the output")
    with np.errstate(all="ignore"):
        np.add.at(out, positions, float32(weight) * values)


def axpy(out: F32, values: F32, weight: float) -> None:
    require_same_length(out, values)
    with np.errstate(all="ignore"):
        for piece in pieces(len(out)):
            out[piece] += float32(weight) * values[piece]
