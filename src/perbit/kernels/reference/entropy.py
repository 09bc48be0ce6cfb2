"""Histogram, rANS and Huffman in numpy (see kernels/README.md)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import F32, U32, U64, Buffer, Symbols
from perbit.kernels.reference.rans_table import rans_read_table, rans_table

__all__ = [
    "histogram",
    "huffman_decode",
    "huffman_decode_table",
    "huffman_encode",
    "rans_decode",
    "rans_decode_table",
    "rans_encode",
    "rans_encode_into",
    "rans_read_table",
    "rans_table",
]

MAX_ALPHABET = 4096
RANS_LOW = 1 << 16  # states live in [RANS_LOW, 2^32)
HUFFMAN_STREAMS = 8


def histogram(symbols: Symbols, alphabet: int) -> U64:
    """Counts of each symbol."""
    _check_alphabet(alphabet)
    counts = np.bincount(symbols, minlength=alphabet)
    if len(counts) > alphabet:
        raise ValueError("a symbol lies outside the alphabet")
    return counts.astype(np.uint64)


# ---- rANS


def rans_encode_into(symbols: Symbols, freqs: U32, bits: int, out: NDArray[np.uint8]) -> int:
    stream = np.frombuffer(rans_encode(symbols, freqs, bits), np.uint8)
    if len(stream) > len(out):
        raise ValueError("the stream does not fit the output")
    out[: len(stream)] = stream
    return len(stream)


def rans_encode(symbols: Symbols, freqs: U32, bits: int) -> bytes:
    """All lanes of a group of W symbols at once, from the last group to the first."""
    f, start = _check_freqs(freqs, bits)
    n = len(symbols)
    if n == 0:
        return b""
    if int(symbols.max()) >= len(f) or not f[symbols].all():
        raise ValueError("a symbol has no frequency, so it cannot be coded")
    lanes = _rans_lanes(n)
    states = np.full(lanes, RANS_LOW, np.int64)
    words: list[NDArray[np.int64]] = []
    for begin in range((n - 1) // lanes * lanes, -1, -lanes):
        group = symbols[begin : begin + lanes]
        freq, x = f[group], states[: len(group)]
        emit = x >= freq << (32 - bits)
        words.append(x[emit] & 0xFFFF)
        x = np.where(emit, x >> 16, x)
        states[: len(group)] = (x // freq << bits) + x % freq + start[group]
    return states.astype("<u4").tobytes() + np.concatenate(words[::-1]).astype("<u2").tobytes()


def rans_decode(data: Buffer, freqs: U32, bits: int, out: Symbols) -> None:
    """The symbols of a stream of `len(out)` symbols."""
    _check_room(len(freqs), out)
    out[:] = _rans_symbols(data, freqs, bits, len(out))


def rans_decode_table(data: Buffer, freqs: U32, bits: int, table: F32, out: F32) -> None:
    """The same, each symbol replaced by its table entry."""
    _check_table(table, len(freqs))
    out[:] = table[_rans_symbols(data, freqs, bits, len(out))]


def _rans_symbols(data: Buffer, freqs: U32, bits: int, n: int) -> NDArray[np.int64]:
    f, start = _check_freqs(freqs, bits)
    symbols = np.zeros(n, np.int64)
    if n == 0:
        if len(data):
            raise ValueError("the rANS stream goes on after its last symbol")
        return symbols
    lanes = _rans_lanes(n)
    if len(data) < 4 * lanes or len(data) % 2:
        raise ValueError("the rANS stream has an impossible size")
    states = np.frombuffer(data, "<u4", lanes).astype(np.int64)
    words = np.frombuffer(data, "<u2", offset=4 * lanes).astype(np.int64)
    if (states < RANS_LOW).any():
        raise ValueError("the rANS stream is corrupt")
    symbol_of_slot = np.repeat(np.arange(len(f)), f)
    taken = 0
    for begin in range(0, n, lanes):
        group = symbols[begin : begin + lanes]  # a view
        x = states[: len(group)]
        slot = x & ((1 << bits) - 1)
        group[:] = symbol_of_slot[slot]
        x = f[group] * (x >> bits) + slot - start[group]
        refill = x < RANS_LOW
        count = int(refill.sum())
        if taken + count > len(words):
            raise ValueError("the rANS stream ends before its last symbol")
        x[refill] = x[refill] << 16 | words[taken : taken + count]
        taken += count
        states[: len(group)] = x
    if taken != len(words):
        raise ValueError("the rANS stream goes on after its last symbol")
    if (states != RANS_LOW).any():
        raise ValueError("the rANS stream is corrupt")
    return symbols


def _rans_lanes(n: int) -> int:
    return 1 if n < 1024 else 4 if n < 8192 else 8 if n < 65536 else 32


def _check_freqs(freqs: U32, bits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Frequencies and their running starts."""
    if not 8 <= bits <= 16:
        raise ValueError("rANS bits must lie in 8..16")
    _check_alphabet(len(freqs))
    f = freqs.astype(np.int64)
    if (f >= 1 << bits).any():
        raise ValueError("every rANS frequency must be below 2^bits")
    if int(f.sum()) != 1 << bits:
        raise ValueError("rANS frequencies must sum to 2^bits")
    return f, np.cumsum(f) - f


# ---- Huffman


def huffman_encode(symbols: Symbols, lengths: NDArray[np.uint8]) -> bytes:
    """Every bit of every code word is placed at once: bit b of all words long enough to have one."""
    size, code = _canonical(lengths)
    if len(symbols) and (int(symbols.max()) >= len(size) or not size[symbols].all()):
        raise ValueError("a symbol has no code word, so it cannot be coded")
    streams = [_huffman_stream(part, size, code) for part in _segments(symbols)]
    sizes = np.array([len(s) for s in streams[:-1]], "<u4")
    return sizes.tobytes() + b"".join(streams)


def _huffman_stream(symbols: Symbols, size: NDArray[np.int64], code: NDArray[np.int64]) -> bytes:
    length, word = size[symbols], code[symbols]
    ends = np.cumsum(length)
    begins = ends - length
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for b in range(int(length.max(initial=0))):
        long = length > b
        bits[begins[long] + b] = word[long] >> b & 1
    return np.packbits(bits, bitorder="little").tobytes()


def huffman_decode(data: Buffer, lengths: NDArray[np.uint8], out: Symbols) -> None:
    """The symbols of a stream of `len(out)` symbols."""
    _check_room(len(lengths), out)
    out[:] = _huffman_symbols(data, lengths, len(out))


def huffman_decode_table(data: Buffer, lengths: NDArray[np.uint8], table: F32, out: F32) -> None:
    """The same, each symbol replaced by its table entry."""
    _check_table(table, len(lengths))
    out[:] = table[_huffman_symbols(data, lengths, len(out))]


def _huffman_symbols(data: Buffer, lengths: NDArray[np.uint8], n: int) -> NDArray[np.int64]:
    size, code = _canonical(lengths)
    width = max(int(size.max()), 1)
    symbol_of_window = np.zeros(1 << width, np.int64)
    length_of_window = np.zeros(1 << width, np.int64)  # 0: no such code word
    for symbol in np.flatnonzero(size):
        windows = slice(int(code[symbol]), None, 1 << int(size[symbol]))
        symbol_of_window[windows], length_of_window[windows] = symbol, size[symbol]
    symbols = np.zeros(n, np.int64)
    parts = _segments(symbols)
    for part, stream in zip(parts, _split_streams(data, len(parts)), strict=True):
        windows_at, path = _walk(stream, width, length_of_window, len(part))
        part[:] = symbol_of_window[windows_at[path]]
    return symbols


def _split_streams(data: Buffer, count: int) -> list[NDArray[np.uint8]]:
    raw = np.frombuffer(data, np.uint8)
    header = 4 * (count - 1)
    if len(raw) < header:
        raise ValueError("the Huffman stream ends before its last symbol")
    ends = header + np.cumsum(np.frombuffer(data, "<u4", count - 1).astype(np.int64))
    if count > 1 and int(ends[-1]) > len(raw):
        raise ValueError("the sizes of the Huffman streams do not fit the data")
    edges = [header, *(int(e) for e in ends), len(raw)]
    return [raw[a:b] for a, b in pairwise(edges)]


def _walk(
    stream: NDArray[np.uint8], width: int, length_of_window: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], list[int]]:
    """The window of `width` bits at every bit position, and the positions at which the code words begin."""
    bits = np.unpackbits(stream, bitorder="little").astype(np.int64)
    total = len(bits)
    padded = np.concatenate([bits, np.zeros(width, np.int64)])
    windows = sum((padded[b : b + total + 1] << b for b in range(width)), np.zeros(total + 1, np.int64))
    sink = total + 1  # reached by a word that does not exist or does not fit, and never left
    length = length_of_window[windows]
    after = np.arange(total + 1) + length
    after[(length == 0) | (after > total)] = sink
    next_position = [*after.tolist(), sink]
    position, path = 0, []
    for _ in range(count):
        path.append(position)
        position = next_position[position]
    if position == sink:
        raise ValueError("the Huffman stream ends early or holds a code word that does not exist")
    if total - position >= 8 or bits[position:].any():
        raise ValueError("the Huffman stream goes on after its last symbol")
    return windows, path


def _segments(symbols: NDArray[Any]) -> list[NDArray[Any]]:
    """The symbols of each stream, as views."""
    n = len(symbols)
    if n < 1024:
        return [symbols]
    q = -(-n // HUFFMAN_STREAMS)
    return [symbols[j * q : (j + 1) * q] for j in range(HUFFMAN_STREAMS)]


def _canonical(lengths: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Checked lengths and the bit-reversed canonical codes."""
    _check_alphabet(len(lengths))
    limit = 11 if len(lengths) <= 256 else 15
    size = lengths.astype(np.int64)
    if int(size.max()) > limit:
        raise ValueError("a Huffman code length exceeds the limit")
    present = np.flatnonzero(size)
    order = present[np.argsort(size[present], kind="stable")]
    spans = 1 << (limit - size[order])  # the code space each word takes, in words of the longest length
    if int(spans.sum()) > 1 << limit:
        raise ValueError("the Huffman code is over-full")
    code = np.zeros(len(size), np.int64)
    for symbol, first in zip(order.tolist(), (np.cumsum(spans) - spans).tolist(), strict=True):
        length = int(size[symbol])
        code[symbol] = int(f"{first >> (limit - length):0{length}b}"[::-1], 2)
    return size, code


# ---- checks shared by both coders


def _check_alphabet(alphabet: int) -> None:
    if not 1 <= alphabet <= MAX_ALPHABET:
        raise ValueError("the alphabet must have 1..4096 symbols")


def _check_room(alphabet: int, out: Symbols) -> None:
    if out.dtype == np.uint8 and alphabet > 256:
        raise ValueError("an alphabet above 256 needs uint16 symbols")


def _check_table(table: F32, alphabet: int) -> None:
    if len(table) != alphabet:
        raise ValueError("the value table must have one entry per symbol")
