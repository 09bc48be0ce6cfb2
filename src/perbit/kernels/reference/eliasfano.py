"""Elias-Fano coded positions in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import U32, Buffer
from perbit.kernels.reference.checks import require
from perbit.kernels.reference.gaps import require_positions, require_tensor


def _part_sizes(count: int, low_bits: int, n: int) -> tuple[int, int]:
    require(0 <= low_bits <= 31, "low_bits must be 0 to 31")
    return (count * low_bits + 7) // 8, (count + ((n - 1) >> low_bits) + 7) // 8 if count else 0


def eliasfano_encode(positions: U32, low_bits: int, n: int) -> bytes:
    require_positions(positions, n)
    _, high_bytes = _part_sizes(len(positions), low_bits, n)
    wide = positions.astype(np.int64)
    planes = (wide[:, None] >> np.arange(low_bits) & 1).astype(np.uint8)
    high = np.zeros(8 * high_bytes, np.uint8)
    high[(wide >> low_bits) + np.arange(len(wide))] = 1
    low = np.packbits(planes.reshape(-1), bitorder="little")
    return low.tobytes() + np.packbits(high, bitorder="little").tobytes()


def eliasfano_decode(data: Buffer, count: int, low_bits: int, n: int) -> U32:
    require_tensor(n, count)
    low_bytes, high_bytes = _part_sizes(count, low_bits, n)
    raw = np.frombuffer(data, np.uint8)
    require(len(raw) == low_bytes + high_bytes, "position data has the wrong length")
    low = np.unpackbits(raw[:low_bytes], bitorder="little")
    require(not low[count * low_bits :].any(), "position data has bits set behind its last low bits")
    planes = low[: count * low_bits].reshape(count, low_bits).astype(np.int64)
    ones: NDArray[np.int64] = np.flatnonzero(np.unpackbits(raw[low_bytes:], bitorder="little"))
    require(len(ones) >= count, "position data ends within a code word")
    require(len(ones) == count, "position data has bits set behind its last position")
    positions: NDArray[np.int64] = ((ones - np.arange(count)) << low_bits) + (planes << np.arange(low_bits)).sum(axis=1)
    require(bool(np.all(positions[1:] > positions[:-1])), "positions do not ascend")
    require(count == 0 or int(positions[-1]) < n, "a position lies outside the tensor")
    return positions.astype(np.uint32)
