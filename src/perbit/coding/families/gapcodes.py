"""Position coders that learn how the gaps between positions are distributed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit import parallel
from perbit.coding.bits import Piece, Reader, Writer
from perbit.coding.codec import PositionCodec
from perbit.coding.cost import Cost
from perbit.coding.families import tables
from perbit.coding.families.entropy import Huffman
from perbit.coding.registry import register
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import U32, U64

_ALPHABET = 256
_SKIP = _ALPHABET - 1  # the symbol that stands for this many steps and no position
_MAX_LOW_BITS = 16
_WALKED = 1 << 16  # symbols that are summed up at a time: sums are eight bytes wide
_TABLE_BITS = 4  # what a symbol that occurs costs in the Huffman table, about


@register
@dataclass(frozen=True)
class Gaps(PositionCodec):
    """Adaptive arithmetic code of the gaps: within 0.3 % of the optimum for random positions, well below it where they cluster."""

    name = "gaps"
    wire_id = 33
    examples = ("topk(0.1, positions=gaps)",)

    def encode(self, positions: U32, n: int) -> bytes:
        return K.gaps_encode(positions, n)

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        return Cost(4 * count, 64 * count)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        try:
            return K.gaps_decode(memoryview(data), count, n)
        except ValueError as error:
            raise DecodeError(f"gaps: {error}") from error


@register
@dataclass(frozen=True)
class HuffGaps(PositionCodec):
    """Huffman code of the gaps in steps of a power of two, with the low bits as they are."""

    name = "huffgaps"
    wire_id = 32
    examples = ("topk(0.1, positions=huffgaps)", "threshold(1.5, positions=huffgaps)")

    def encode(self, positions: U32, n: int) -> bytes:
        if positions.size == 0:
            return b""
        gaps = np.diff(positions, prepend=np.uint32(0)) - (np.arange(positions.size) > 0).astype(np.uint32)
        low_bits = min(range(_MAX_LOW_BITS + 1), key=lambda bits: _cost(gaps, bits))
        steps = gaps >> np.uint32(low_bits)
        skips, last = steps // _SKIP, steps % _SKIP
        symbols = np.full(int(skips.sum()) + positions.size, _SKIP, np.uint8)
        symbols[np.cumsum(skips + 1) - 1] = last
        out = Writer()
        out.raw(bytes([low_bits]))
        out.varint(symbols.size - positions.size)
        out.section(*Huffman().encode(symbols, _ALPHABET, None))
        if low_bits:
            out.raw(K.pack((gaps & np.uint32((1 << low_bits) - 1)).astype(np.uint16), low_bits))
        return out.join()

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        return Cost(8 * count + n // _SKIP + 64 * _WALKED, 32 * count)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        src = Reader(data)
        if count == 0:
            src.end()
            return np.empty(0, np.uint32)
        low_bits = src.byte("huffgaps: low bits")
        if low_bits > _MAX_LOW_BITS:
            raise DecodeError(f"huffgaps: {low_bits} low bits, at most {_MAX_LOW_BITS} are allowed")
        symbols = np.empty(count + src.varint("huffgaps: skips", (n >> low_bits) // _SKIP), np.uint8)
        Huffman().decode(src.section("huffgaps: steps"), _ALPHABET, None, symbols)
        low = np.zeros(count, np.uint16)
        if low_bits:
            K.unpack(src.take((count * low_bits + 7) // 8, "huffgaps: low bits"), low_bits, low)
        src.end()
        found = int(np.count_nonzero(symbols != _SKIP))
        if found != count or symbols[-1] == _SKIP:
            raise DecodeError(f"huffgaps: expected {count} gaps, got {found}")
        return _walk(symbols, low, low_bits, n)


def _walk(symbols: NDArray[np.uint8], low: NDArray[np.uint16], low_bits: int, n: int) -> U32:
    """Positions from steps and low bits, chunk by chunk."""
    positions = np.empty(low.size, np.uint32)
    done, at = 0, -1  # positions so far, and the last of them
    steps = 0  # since then
    for lo, hi in parallel.chunks(symbols.size, _WALKED):
        walked = np.cumsum(symbols[lo:hi], dtype=np.int64)
        walked += steps
        ends = np.flatnonzero(symbols[lo:hi] != _SKIP)
        gaps = low[done : done + ends.size]
        found = (walked[ends] << low_bits) + np.cumsum(gaps, dtype=np.int64) + np.arange(at + 1, at + 1 + ends.size)
        if ends.size:
            if found[-1] >= n:
                raise DecodeError(f"huffgaps: a position lies outside the tensor of {n}")
            positions[done : done + ends.size] = found
            done, at, steps = done + ends.size, int(found[-1]), int(walked[-1] - walked[ends[-1]])
        else:
            steps = int(walked[-1])
    return positions


def _cost(gaps: U32, low_bits: int) -> float:
    """About how many bits the gaps take in steps of 2^low_bits."""
    steps = gaps >> np.uint32(low_bits)
    counts: U64 = np.bincount(steps % _SKIP, minlength=_ALPHABET).astype(np.uint64)
    counts[_SKIP] = int((steps // _SKIP).sum())
    return tables.entropy_bits(counts) + _TABLE_BITS * np.count_nonzero(counts) + low_bits * gaps.size
