"""Argument checks and piecewise processing shared by the numpy kernels; the messages are those of the compiled ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 16  # elements processed at a time, so that temporaries stay small
MAX_LENGTH = 1 << 32  # positions are 32-bit
MAX_INDEX = 1 << 63


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def require_same_length(*arrays: NDArray[Any]) -> None:
    require(len({len(a) for a in arrays}) == 1, "array lengths differ")


def require_alphabet(out: NDArray[Any], members: int) -> None:
    require(1 <= members <= 1 << 8 * out.itemsize, "the alphabet does not fit the symbol type")


def require_start(start: int, n: int) -> None:
    require(start >= 0 and start + n <= MAX_INDEX, "start is out of range")


def require_buckets(start: int, n: int, bucket: int, buckets: int) -> None:
    require(bucket > 0, "bucket must be positive")
    require_start(start, n)
    require(n == 0 or (start + n - 1) // bucket < buckets, "there are fewer bucket scales than buckets")


def float32(value: float) -> np.float32:
    """A scalar argument as the compiled kernels see it."""
    with np.errstate(over="ignore"):
        return np.float32(value)


def finite32(value: float) -> np.float32:
    single = float32(value)
    require(bool(np.isfinite(single)), "a scalar argument is not finite")
    return single


def pieces(n: int) -> Iterator[slice]:
    """Slices that cover 0..n in order."""
    return (slice(begin, min(n, begin + PIECE)) for begin in range(0, n, PIECE))


def bucket_of(start: int, piece: slice, bucket: int) -> NDArray[np.int64]:
    """The bucket of each element of a piece; element 0 of the call has global index start."""
    indices: NDArray[np.int64] = np.arange(start + piece.start, start + piece.stop, dtype=np.int64) // bucket
    return indices
