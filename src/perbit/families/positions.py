"""Position coders: which entries of a sparse tensor are there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perbit.bits import Piece
from perbit.codec import PositionCodec
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import U32
from perbit.registry import register


@register
@dataclass(frozen=True)
class Raw32(PositionCodec):
    """Every position as 32 bits."""

    name = "raw32"
    wire_id = 16
    examples = ("topk(0.1, positions=raw32)",)

    def encode(self, positions: U32, n: int) -> bytes:
        return positions.astype("<u4").tobytes()

    def decode(self, data: Piece, n: int, count: int) -> U32:
        if len(data) != 4 * count:
            raise DecodeError(f"raw32: {count} positions need {4 * count} bytes, got {len(data)}")
        positions = np.frombuffer(data, "<u4").astype(np.uint32)
        if count and (positions[-1] >= n or np.any(positions[1:] <= positions[:-1])):
            raise DecodeError(f"raw32: positions must ascend and stay below {n}")
        return positions


@register
@dataclass(frozen=True)
class Bitmap(PositionCodec):
    """One bit a value: present or not."""

    name = "bitmap"
    wire_id = 14
    examples = ("topk(0.1, positions=bitmap) | fp16",)

    def encode(self, positions: U32, n: int) -> bytes:
        present = np.zeros(n, np.uint8)
        present[positions] = 1
        return np.packbits(present, bitorder="little").tobytes()

    def decode(self, data: Piece, n: int, count: int) -> U32:
        if len(data) != (n + 7) // 8:
            raise DecodeError(f"bitmap: {n} values need {(n + 7) // 8} bytes, got {len(data)}")
        present = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        positions = np.flatnonzero(present).astype(np.uint32)
        if positions.size != count or (count and positions[-1] >= n):
            raise DecodeError(f"bitmap: expected {count} positions below {n}, got {positions.size}")
        return positions


@register
@dataclass(frozen=True)
class Golomb(PositionCodec):
    """Golomb-Rice code of the gaps: within 1 % of the optimum for random positions at 1 % density."""

    name = "golomb"
    wire_id = 15
    examples = ("topk(0.05, positions=golomb)",)

    def encode(self, positions: U32, n: int) -> bytes:
        b = _best_parameter(positions)
        return bytes([b]) + K.golomb_encode(positions, b)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        if len(data) < 1 or data[0] > 31:
            raise DecodeError("golomb: the parameter is missing or above 31")
        try:
            return K.golomb_decode(memoryview(data)[1:], count, data[0], n)
        except ValueError as error:
            raise DecodeError(f"golomb: {error}") from error


def _best_parameter(positions: U32) -> int:
    """The Rice parameter with the fewest bits: count·(b + 1) + Σ(gap >> b), convex in b."""
    if positions.size == 0:
        return 0
    gaps = np.diff(positions, prepend=np.uint32(0))
    guess = round(math.log2(max(1.0, 0.69 * (int(positions[-1]) + 1) / positions.size)))

    def bits(b: int) -> int:
        return positions.size * (b + 1) + int((gaps >> np.uint32(b)).sum(dtype=np.uint64))

    return min(range(max(0, guess - 2), min(31, guess + 1) + 1), key=bits)
