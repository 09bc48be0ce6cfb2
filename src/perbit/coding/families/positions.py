"""Position coders with fixed codes: which entries of a sparse tensor are there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perbit.coding.bits import Piece, Reader, Writer, varint
from perbit.coding.codec import PositionCodec
from perbit.coding.cost import Cost
from perbit.coding.registry import register
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import U32


@register
@dataclass(frozen=True)
class Raw32(PositionCodec):
    """Every position as 32 bits."""

    name = "raw32"
    wire_id = 16
    examples = ("topk(0.1, positions=raw32)",)

    def encode(self, positions: U32, n: int) -> bytes:
        return positions.astype("<u4").tobytes()

    def n_bytes(self, positions: U32, n: int) -> int:
        return 4 * positions.size

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        return Cost(6 * count, 4 * count)

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

    def n_bytes(self, positions: U32, n: int) -> int:
        return (n + 7) // 8

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        return Cost(n + 12 * count, 2 * n + 4 * count)

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

    def n_bytes(self, positions: U32, n: int) -> int:
        b = _best_parameter(positions)
        absent = np.diff(positions, prepend=np.uint32(0))
        absent[1:] -= 1
        return 1 + (positions.size * (b + 1) + int((absent >> np.uint32(b)).sum(dtype=np.uint64)) + 7) // 8

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        return Cost(4 * count, 8 * count)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        if len(data) < 1 or data[0] > 31:
            raise DecodeError("golomb: the parameter is missing or above 31")
        try:
            return K.golomb_decode(memoryview(data)[1:], count, data[0], n)
        except ValueError as error:
            raise DecodeError(f"golomb: {error}") from error


@register
@dataclass(frozen=True)
class Rle(PositionCodec):
    """Runs of neighbours: Golomb-Rice codes of how many are absent before each run and how long it is."""

    name = "rle"
    wire_id = 31
    examples = ("topk(0.5, positions=rle)",)

    def encode(self, positions: U32, n: int) -> bytes:
        absent, present = _runs(positions)
        out = Writer()
        out.varint(absent.size)
        out.section(Golomb().encode(absent, n))
        out.raw(Golomb().encode(present, n))
        return out.join()

    def n_bytes(self, positions: U32, n: int) -> int:
        absent, present = _runs(positions)
        first = Golomb().n_bytes(absent, n)
        return len(varint(absent.size)) + len(varint(first)) + first + Golomb().n_bytes(present, n)

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        return Cost(40 * count, 32 * count)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        src = Reader(data)
        runs = src.varint("rle: number of runs", count)
        absent = Golomb().decode(src.section("rle: absent"), n - count + 1, runs)
        ends = Golomb().decode(src.take(src.remaining, "rle: present"), count, runs).astype(np.int64) + 1
        if (int(ends[-1]) if runs else 0) != count:
            raise DecodeError(f"rle: the runs do not hold {count} positions")
        lengths = np.diff(ends, prepend=0)
        return np.asarray(np.repeat(absent, lengths) + np.arange(count, dtype=np.uint32), np.uint32)


@register
@dataclass(frozen=True)
class EliasFano(PositionCodec):
    """Low bits as they are, high bits in unary: at most two bits a position above the optimum, and fast."""

    name = "eliasfano"
    wire_id = 34
    examples = ("topk(0.05, positions=eliasfano)",)

    def encode(self, positions: U32, n: int) -> bytes:
        return K.eliasfano_encode(positions, _low_bits(n, positions.size), n)

    def n_bytes(self, positions: U32, n: int) -> int:
        k, low_bits = positions.size, _low_bits(n, positions.size)
        return (k * low_bits + 7) // 8 + (k + ((n - 1) >> low_bits) + 7) // 8 if k else 0

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        return Cost(4 * count, 8 * count)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        try:
            return K.eliasfano_decode(memoryview(data), count, _low_bits(n, count), n)
        except ValueError as error:
            raise DecodeError(f"eliasfano: {error}") from error


def _runs(positions: U32) -> tuple[U32, U32]:
    """For each run of neighbours: how many are absent before it in all, and how many are present up to its last one.

    >>> [part.tolist() for part in _runs(np.array([0, 1, 5, 6, 7], np.uint32))]
    [[0, 3], [1, 4]]
    """
    is_first = np.ones(positions.size, np.bool_)
    is_first[1:] = np.diff(positions) != 1
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], positions.size)[: first.size] - 1
    return positions[first] - first.astype(np.uint32), last.astype(np.uint32)


def _low_bits(n: int, count: int) -> int:
    """Of a position: those below the mean gap."""
    return min(31, (n // count).bit_length() - 1) if count else 0


def _best_parameter(positions: U32) -> int:
    """The Rice parameter with the fewest bits: count·(b + 1) + Σ(gap >> b), convex in b."""
    if positions.size == 0:
        return 0
    gaps = np.diff(positions, prepend=np.uint32(0))
    guess = round(math.log2(max(1.0, 0.69 * (int(positions[-1]) + 1) / positions.size)))

    def bits(b: int) -> int:
        return positions.size * (b + 1) + int((gaps >> np.uint32(b)).sum(dtype=np.uint64))

    return min(range(max(0, guess - 2), min(31, guess + 1) + 1), key=bits)
