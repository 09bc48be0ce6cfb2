"""Dense bit fields and Golomb-Rice coded positions in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import U32, Buffer, Symbols
from perbit.kernels.reference.checks import MAX_LENGTH, pieces, require


def _require_bits(symbols: Symbols, bits: int) -> None:
    require(1 <= bits <= 8 * symbols.itemsize, "bits must be 1 to 8 for uint8 symbols, 1 to 16 for uint16")


def pack(symbols: Symbols, bits: int) -> bytes:
    _require_bits(symbols, bits)
    require(not np.any(symbols >> bits if bits < 16 else 0), "a symbol does not fit in the given number of bits")
    parts = []
    for piece in pieces(len(symbols)):  # a multiple of eight symbols fills whole bytes
        fields = symbols[piece].astype("<u2").view(np.uint8).reshape(-1, 2)
        planes = np.unpackbits(fields, axis=1, bitorder="little")[:, :bits]
        parts.append(np.packbits(planes.reshape(-1), bitorder="little").tobytes())
    return b"".join(parts)


def unpack(data: Buffer, bits: int, out: Symbols) -> None:
    _require_bits(out, bits)
    raw = np.frombuffer(data, dtype=np.uint8)
    n = len(out)
    require(len(raw) == (n * bits + 7) // 8, "packed data has the wrong length for this many symbols")
    last_bits = n * bits % 8
    require(last_bits == 0 or int(raw[-1]) >> last_bits == 0, "packed data has bits set behind its last symbol")
    weights = (1 << np.arange(bits)).astype(np.uint16)
    for piece in pieces(n):
        count = piece.stop - piece.start
        begin = piece.start // 8 * bits
        planes = np.unpackbits(raw[begin : begin + (count * bits + 7) // 8], count=count * bits, bitorder="little")
        out[piece] = (planes.reshape(count, bits) * weights).sum(axis=1, dtype=np.uint16)


def golomb_encode(positions: U32, b: int) -> bytes:
    require(0 <= b <= 31, "b must be 0 to 31")
    gaps = np.diff(positions.astype(np.int64), prepend=-1) - 1
    require(bool(np.all(gaps >= 0)), "positions must be strictly ascending")
    ends = np.cumsum((gaps >> b) + b + 1)  # one behind the terminating one of each code word
    out = np.zeros(-(-int(ends[-1]) // 8) if len(ends) else 0, dtype=np.uint8)

    def set_bits(at: NDArray[np.int64]) -> None:
        np.bitwise_or.at(out, at >> 3, (1 << (at & 7)).astype(np.uint8))

    set_bits(ends - 1)
    begins = ends - 1 - (gaps >> b) - b
    for bit in range(b):
        set_bits((begins + bit)[(gaps >> bit & 1).astype(bool)])
    return out.tobytes()


def golomb_decode(data: Buffer, count: int, b: int, n: int) -> U32:
    require(0 <= b <= 31, "b must be 0 to 31")
    require(n <= MAX_LENGTH, "positions are 32-bit: n is too large")
    raw = np.frombuffer(data, dtype=np.uint8)
    require(count <= 8 * len(raw) // (b + 1), "position data is too short for this many positions")
    require(count <= n, "there are more positions than elements")
    bits = np.unpackbits(raw, bitorder="little")
    text = bits.tobytes()
    ends = np.empty(count, dtype=np.int64)
    begin = 0
    for i in range(count):  # only the search for the ones is sequential
        end = text.find(1, begin + b)
        require(end >= 0, "position data ends within a code word")
        ends[i] = end
        begin = end + 1
    require(-(-begin // 8) == len(raw), "position data has the wrong length")
    require(not bits[begin:].any(), "position data has bits set behind its last code word")
    begins = np.concatenate([[0], ends[:-1] + 1]) if count else ends
    quotients = ends - begins - b
    require(not np.any(quotients > n >> b), "a position lies outside the tensor")  # before the shift could overflow
    gaps = quotients << b
    for bit in range(b):
        gaps += bits[begins + bit].astype(np.int64) << bit
    positions = np.cumsum(gaps + 1) - 1
    require(count == 0 or int(positions.max()) < n, "a position lies outside the tensor")
    return positions.astype(np.uint32)
