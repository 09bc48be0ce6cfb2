"""Symbol coders: fixed width, Huffman and rANS. The last two take a prior table or send their own, whichever is smaller.

A coded chunk starts with a varint mode: 0 one symbol only (it follows) · 1 packed · 2 a table follows · 3+i table i of the quantizer's prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perbit import parallel
from perbit.coding.bits import Piece, Reader, varint
from perbit.coding.codec import Rest, SymbolCoder
from perbit.coding.families import tables
from perbit.coding.families.modelled import Modelled
from perbit.coding.registry import register
from perbit.coding.values import Prior, symbol_dtype
from perbit.errors import DecodeError, EncodeError
from perbit.kernels import K
from perbit.kernels.api import F32, U32, U64, Symbols

_CONSTANT, _PACKED, _TABLE, _PRIOR = range(4)
_ALWAYS = "always"
_STATE_BYTES = tables.STATE_BITS // 8  # what one lane of rANS costs beyond its symbols
_LARGE = 1 << 18  # symbols from which a stream is worth a place on the shelf
_LEAST_TABLE_BITS = 3  # a table costs at least this much for each symbol that occurs


def width(alphabet: int) -> int:
    """Bits that hold every symbol of an alphabet."""
    return max(1, (alphabet - 1).bit_length())


def packed_size(n: int, alphabet: int) -> int:
    return (n * width(alphabet) + 7) // 8


def pack(symbols: Symbols, alphabet: int) -> bytes:
    return K.pack(symbols, width(alphabet))


def unpack(data: Piece, alphabet: int, out: Symbols) -> None:
    K.unpack(memoryview(data), width(alphabet), out)
    if alphabet & (alphabet - 1) and out.size and int(out.max()) >= alphabet:
        raise DecodeError(f"pack: a symbol outside the alphabet of {alphabet}")


@register
@dataclass(frozen=True)
class Pack(SymbolCoder):
    """Fixed width: ⌈log₂ alphabet⌉ bits a symbol."""

    name = "pack"
    wire_id = 9
    examples = ("qsgd(7) | pack",)
    gives = "bytes"

    def encode(self, symbols: Symbols, alphabet: int, prior: Prior | None) -> tuple[Piece, ...]:
        return (pack(symbols, alphabet),)

    def decode(self, data: Piece, alphabet: int, prior: Prior | None, out: Symbols) -> None:
        unpack(data, alphabet, out)

    def coded_size(self, n: int, alphabet: int) -> int:
        return packed_size(n, alphabet)


Rest.packing = Pack()


@register
@dataclass(frozen=True)
class Rans(SymbolCoder):
    """Range asymmetric numeral systems: within 0.2 % of the entropy at any rate."""

    name = "rans"
    wire_id = 11
    examples = ("uniform(4) | rans", "uniform(9) | rans")
    gives = "coded"

    def encode(self, symbols: Symbols, alphabet: int, prior: Prior | None) -> tuple[Piece, ...]:
        counts = K.histogram(symbols, alphabet)
        plain = _plain(symbols, counts)
        if plain is not None:
            return (plain,)
        index, prior_bits = prior.best(counts) if prior is not None else (0, math.inf)
        head, freqs, bits, cost = self._own_table(counts, prior_bits)
        if prior is not None and prior_bits <= cost:
            freqs, bits = prior.freqs(index)
            head, cost = varint(_PRIOR + index), prior_bits
        if packed_size(symbols.size, alphabet) <= cost / 8 + _STATE_BYTES * tables.rans_lanes(symbols.size):
            return varint(_PACKED), pack(symbols, alphabet)
        return head, _rans_stream(symbols, freqs, bits)

    @staticmethod
    def _own_table(counts: U64, to_beat: float) -> tuple[bytes, U32, int, float]:
        """A table made for these counts and what everything costs with it; infinity at once if it cannot win."""
        if to_beat < math.inf:
            least = tables.entropy_bits(counts) + _LEAST_TABLE_BITS * np.count_nonzero(counts)
            if to_beat <= least:
                return b"", np.empty(0, np.uint32), 0, math.inf
        freqs, bits, written, cost = K.rans_table(counts)
        cost -= 8 * _STATE_BYTES * tables.rans_lanes(int(counts.sum()))
        return varint(_TABLE) + written, freqs, bits, cost + 8 * len(written)

    def decode(self, data: Piece, alphabet: int, prior: Prior | None, out: Symbols) -> None:
        src = Reader(data)
        mode = _decode_plain(src, alphabet, out)
        if mode is not None:
            freqs, bits = self._freqs(src, mode, alphabet, prior)
            K.rans_decode(src.view[src.position :], freqs, bits, out)

    def decode_table(self, data: Piece, table: F32, prior: Prior | None, out: F32) -> None:
        src = Reader(data)
        mode = _decode_plain_table(src, table, out)
        if mode is not None:
            freqs, bits = self._freqs(src, mode, len(table), prior)
            K.rans_decode_table(src.view[src.position :], freqs, bits, table, out)

    @staticmethod
    def _freqs(src: Reader, mode: int, alphabet: int, prior: Prior | None) -> tuple[U32, int]:
        if mode == _TABLE:
            freqs, bits, used = tables.read_freqs(src.view[src.position :], alphabet)
            src.take(used, "frequency table")
            return freqs, bits
        return _prior_table(prior, mode).freqs(mode - _PRIOR)


def _rans_stream(symbols: Symbols, freqs: U32, bits: int) -> Piece:
    if symbols.size < _LARGE:
        return K.rans_encode(symbols, freqs, bits)
    shelf = parallel.shelf()
    return shelf.keep(K.rans_encode_into(symbols, freqs, bits, shelf.room(3 * symbols.size)))


@register
@dataclass(frozen=True)
class Huffman(SymbolCoder):
    """Canonical Huffman code, at most 11 bits a symbol (15 for alphabets above 256).

    Args:
        prior: "auto": a table of its own, or the quantizer's estimate, whichever is smaller. "always": the code of the distribution that
            the quantizer has fitted or holds, whatever the symbols: frames with the same fit have one code, and none carries a table. As
            in CO₃; for fp, mwl2 and lloyd.
    """

    prior: str = "auto"

    name = "huffman"
    wire_id = 10
    examples = ("uniform(4) | huffman", "uniform(10) | huffman", 'fp(2, 1) | huffman(prior="always")')
    gives = "coded"

    def __post_init__(self) -> None:
        if self.prior not in ("auto", _ALWAYS):
            raise ValueError(f'prior must be "auto" or "always", got {self.prior!r}')

    def encode(self, symbols: Symbols, alphabet: int, prior: Prior | None) -> tuple[Piece, ...]:
        if self.prior == _ALWAYS and symbols.size:
            return varint(_PRIOR), K.huffman_encode(symbols, self._prior_lengths(_model(prior), 0, alphabet))
        counts = K.histogram(symbols, alphabet)
        plain = _plain(symbols, counts)
        if plain is not None:
            return (plain,)
        weights = counts.astype(np.int64)
        lengths = tables.huffman_lengths(counts, tables.huffman_limit(alphabet))
        head = varint(_TABLE) + tables.write_lengths(lengths)
        cost = int(weights @ lengths.astype(np.int64)) + 8 * len(head)
        if prior is not None:
            index, _ = prior.best(counts)
            from_prior = self._prior_lengths(prior, index, alphabet)
            prior_head = varint(_PRIOR + index)
            prior_cost = int(weights @ from_prior.astype(np.int64)) + 8 * len(prior_head)
            if prior_cost <= cost:
                lengths, head, cost = from_prior, prior_head, prior_cost
        if packed_size(symbols.size, alphabet) + 1 <= cost // 8:
            return varint(_PACKED), pack(symbols, alphabet)
        return head, K.huffman_encode(symbols, lengths)

    def decode(self, data: Piece, alphabet: int, prior: Prior | None, out: Symbols) -> None:
        src = self._opened(data)
        mode = _decode_plain(src, alphabet, out)
        if mode is not None:
            lengths = self._lengths(src, mode, alphabet, prior)
            K.huffman_decode(src.view[src.position :], lengths, out)

    def decode_table(self, data: Piece, table: F32, prior: Prior | None, out: F32) -> None:
        src = self._opened(data)
        mode = _decode_plain_table(src, table, out)
        if mode is not None:
            lengths = self._lengths(src, mode, len(table), prior)
            K.huffman_decode_table(src.view[src.position :], lengths, table, out)

    def _opened(self, data: Piece) -> Reader:
        if self.prior == _ALWAYS and len(data) and data[0] != _PRIOR:
            raise DecodeError(f'huffman(prior="always") has no coding mode {data[0]}')
        return Reader(data)

    def _lengths(self, src: Reader, mode: int, alphabet: int, prior: Prior | None) -> NDArray[np.uint8]:
        if mode == _TABLE:
            lengths, used = tables.read_lengths(src.view[src.position :], alphabet)
            src.take(used, "code lengths")
            return lengths
        return self._prior_lengths(_prior_table(prior, mode), mode - _PRIOR, alphabet)

    @staticmethod
    def _prior_lengths(prior: Prior, index: int, alphabet: int) -> NDArray[np.uint8]:
        freqs, _ = prior.freqs(index)
        return _code_of(freqs.astype(np.uint64).tobytes(), tables.huffman_limit(alphabet))


@lru_cache(maxsize=256)
def _code_of(frequencies: bytes, limit: int) -> NDArray[np.uint8]:
    """The code of a prior, not to be written to. A fit that is held gives the same one in every frame."""
    lengths = tables.huffman_lengths(np.frombuffer(frequencies, np.uint64), limit)
    lengths.flags.writeable = False
    return lengths


def _model(prior: Prior | None) -> Prior:
    if not isinstance(prior, Modelled):
        raise EncodeError('huffman(prior="always") needs a quantizer that fits a distribution: fp, mwl2 or lloyd')
    return prior


def _plain(symbols: Symbols, counts: U64) -> bytes | None:
    """Chunks that need no code: none or one distinct symbol."""
    if symbols.size == 0:
        return b""
    if np.count_nonzero(counts) == 1:
        return varint(_CONSTANT) + varint(int(symbols[0]))
    return None


def _decode_plain(src: Reader, alphabet: int, out: Symbols) -> int | None:
    """Decode chunks that need no table; otherwise say which mode it is."""
    if out.size == 0:
        src.end()
        return None
    mode = src.varint("coding mode")
    if mode == _CONSTANT:
        out.fill(src.varint("symbol", alphabet - 1))
        src.end()
        return None
    if mode == _PACKED:
        unpack(src.take(packed_size(out.size, alphabet), "packed symbols"), alphabet, out)
        src.end()
        return None
    return mode


def _decode_plain_table(src: Reader, table: F32, out: F32) -> int | None:
    if out.size and src.remaining and src.view[0] == _PACKED:
        symbols = parallel.scratch(out.size, symbol_dtype(len(table)))
        _decode_plain(src, len(table), symbols)
        K.dequantize(symbols, table, out)
        return None
    if out.size and src.remaining and src.view[0] == _CONSTANT:
        one = np.empty(1, symbol_dtype(len(table)))
        _decode_plain(src, len(table), one)
        out.fill(table[one[0]])
        return None
    return _decode_plain(src, len(table), np.empty(0, np.uint8)) if out.size == 0 else src.varint("coding mode")


def _prior_table(prior: Prior | None, mode: int) -> Prior:
    if prior is None or mode - _PRIOR >= len(prior):
        raise DecodeError(f"coding mode {mode} does not exist here")
    return prior
