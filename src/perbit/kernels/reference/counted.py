"""Positions in chunks with known counts under an arithmetic code, in plain Python (kernels/counted.hpp)."""

from __future__ import annotations

import numpy as np

from perbit.kernels.api import U32, Buffer
from perbit.kernels.reference.bitcoder import BitDecoder, BitEncoder, probability
from perbit.kernels.reference.checks import MAX_LENGTH, require

MAX_CHUNK = 1 << 16


def counted_encode(positions: U32, counts: U32, chunk: int, n: int) -> bytes:
    _require_counts(counts, chunk, n)
    require(int(counts.sum(dtype=np.uint64)) == len(positions), "the counts are not those of the positions")
    begins = chunk * np.arange(len(counts), dtype=np.int64).repeat(counts)
    inside = (positions >= begins) & (positions < begins + chunk)
    ascends = bool(np.all(positions[1:] > positions[:-1])) and bool(np.all(positions < n))
    require(ascends and bool(inside.all()), "positions must be strictly ascending and lie in their chunks")
    coder, there = BitEncoder(), set(positions.tolist())
    _walk(coder, counts, chunk, n, there)
    return coder.finish()


def counted_decode(data: Buffer, counts: U32, chunk: int, n: int) -> U32:
    _require_counts(counts, chunk, n)
    coder = BitDecoder(data)
    found = _walk(coder, counts, chunk, n, set())
    coder.finish()
    return np.array(found, np.uint32)


def _walk(coder: BitEncoder | BitDecoder, counts: U32, chunk: int, n: int, there: set[int]) -> list[int]:
    """Code every chunk; the decoder's `there` does not matter."""
    found = []
    for i in np.flatnonzero(counts).tolist():
        at, end, left = i * chunk, min(n, (i + 1) * chunk), int(counts[i])
        while left:
            open_ = end - at
            if left == open_ or coder.bit(int(at in there), probability((left << 16) // open_)):
                found.append(at)
                left -= 1
            at += 1
    return found


def _require_counts(counts: U32, chunk: int, n: int) -> None:
    require(n <= MAX_LENGTH, "positions are 32-bit: n is too large")
    require(1 <= chunk <= MAX_CHUNK, "a chunk has 1 to 65536 values")
    require(len(counts) == -(-n // chunk), "there must be a count for every chunk")
    room = np.full(len(counts), chunk, np.uint64)
    room[-1:] = n - chunk * (len(counts) - 1) if len(counts) else 0
    require(bool(np.all(counts <= room)), "a chunk has more positions than values")
