"""Symbols of a quantizer as bytes: rANS with its table, or an adaptive code where that is smaller by some percent.

    stream = byte mode: 0 every symbol is zero · 1 adaptive · 2 rANS · 3 sparse
    1: byte context of the mean, section of levels      2: varint largest level, a section of levels for each block
    3: varint how many are not zero, section of their positions, byte context of the mean, section of their levels less 1

A symbol becomes a level by its distance from zero: 0, -1, 1, -2, 2, … are 0, 1, 2, 3, 4, …
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perbit import parallel
from perbit.coding.bits import Piece, Reader, Writer
from perbit.coding.cost import Cost
from perbit.coding.families.entropy import Rans
from perbit.errors import DecodeError
from perbit.kernels import K, fused
from perbit.kernels.api import F32, Symbols
from perbit.kernels.reference.logarithm import exact_log2

_ZEROS, _ADAPTIVE, _RANS, _SPARSE = range(4)
_SPARSE_SHARE = 1 / 16  # of symbols that are not zero, below which their positions may be shorter
_TINY = 512  # symbols for which no table pays
_PART = 1 << 13  # symbols that tell which of two coders suits them
_LARGEST_TOLD, _SUMS = 7, 16  # levels, and sums of their neighbours, that are told apart there
_TOLD = 0.98  # of the bits: below, what neighbours tell is worth the slower coder
_MISSED = 0.72  # bits that entropies of counts miss, for each that is not zero
_FEW_BYTES, _FEW = 300, 1 << 14  # in bytes and symbols: so little is given to both coders ...
_FASTER = 0.985  # ... and the slower one must save this much
_MEANS = 27  # half octaves from 1/16 on
_RANS_CODER = Rans()


@fused
def write_stream(symbols: Symbols, columns: int, block: int) -> Piece:
    """The stream of symbols that stand in rows of `columns` (0: in no rows); blocks have tables of their own."""
    levels = _levels(symbols)
    if not levels.any():
        return bytes([_ZEROS])
    best = _adaptive(levels, columns) if _neighbours_tell(levels, columns) else _by_symbol(levels, columns, block)
    return best.join()


def _by_symbol(levels: Symbols, columns: int, block: int) -> Writer:
    """The stream of levels of which neighbours tell little."""
    best = _rans(levels, block)
    if np.count_nonzero(levels) < _SPARSE_SHARE * levels.size:
        best = min(best, _sparse(levels), key=_size)
    if levels.size <= _FEW and _size(best) <= _FEW_BYTES:
        adaptive = _adaptive(levels, columns)
        best = adaptive if _size(adaptive) < _FASTER * _size(best) else best
    return best


def _size(stream: Writer) -> int:
    return sum(map(len, stream.pieces))


def _adaptive(levels: Symbols, columns: int) -> Writer:
    out = Writer()
    out.raw(bytes([_ADAPTIVE]))
    _write_levels(levels, columns, out)
    return out


def _rans(levels: Symbols, block: int) -> Writer:
    out, largest = Writer(), int(levels.max())
    out.raw(bytes([_RANS]))
    out.varint(largest)
    for pieces in parallel.run(lambda part: _RANS_CODER.encode(part, largest + 1, None), _blocks(levels, block)):
        out.section(*pieces)
    return out


def _sparse(levels: Symbols) -> Writer:
    out, at = Writer(), np.flatnonzero(levels).astype(np.uint32)
    out.raw(bytes([_SPARSE]))
    out.varint(at.size)
    out.section(K.gaps_encode(at, levels.size))
    _write_levels(levels[at] - levels.dtype.type(1), 0, out)
    return out


def _write_levels(levels: Symbols, columns: int, out: Writer) -> None:
    mean = 256 * int(levels.sum(dtype=np.int64)) // levels.size
    context = next((c for c in range(_MEANS) if _mean(c + 1) > mean), _MEANS)
    out.raw(bytes([context]))
    out.section(K.levels_encode(levels.astype(np.uint32), min(columns, levels.size), _mean(context)))


def read(src: Reader, columns: int, block: int, table: F32, out: F32) -> None:
    """Fill `out` with table[symbol] for the symbols that `write` wrote."""
    mode = src.byte("mode")
    if mode == _ZEROS:
        out.fill(table[len(table) // 2])
    elif mode == _ADAPTIVE:
        _read_levels(src, columns, _by_level(table), out)
    elif mode == _SPARSE:
        count = src.varint("symbols that are not zero", out.size)
        src.spend(Cost(12 * count, 80 * count))
        at = K.gaps_decode(src.section("positions"), count, out.size)
        out.fill(table[len(table) // 2])
        values = np.empty(count, np.float32)
        _read_levels(src, 0, _by_level(table)[1:], values)
        out[at] = values
    elif mode == _RANS:
        largest = src.varint("largest level", len(table) - 1)
        values = np.ascontiguousarray(_by_level(table)[: largest + 1])
        streams = [(src.section("symbols"), part) for part in _blocks(out, block)]
        for _ in parallel.run(lambda one: _RANS_CODER.decode_table(one[0], values, None, one[1]), streams):
            pass
    else:
        raise DecodeError(f"rd: unknown mode {mode}")


def _read_levels(src: Reader, columns: int, by_level: F32, out: F32) -> None:
    context = src.byte("context of the mean")
    if context > _MEANS:
        raise DecodeError(f"rd: {context} is no context of a mean")
    src.spend(Cost(16 * out.size, 24 * out.size))
    K.levels_decode_table(src.section("levels"), min(columns, out.size), _mean(context), by_level, out)


_Array = TypeVar("_Array", Symbols, F32)


def _blocks(array: _Array, size: int) -> list[_Array]:
    return [array[lo : lo + size] for lo in range(0, array.size, size)]


def _neighbours_tell(levels: Symbols, columns: int) -> bool:
    """Whether levels before and above save some percent; of few levels it is taken for granted, since no table pays."""
    if levels.size <= _TINY:
        return True
    start = max(0, (levels.size - _PART) // 2)
    part = np.minimum(levels[start : start + _PART], _LARGEST_TOLD).astype(np.uint8)
    above = 2 * columns if 4 * columns < part.size else 0
    before = max(above, 2)
    near = part[before - 1 : -1] + part[before - 2 : -2]
    near += (part[columns:-columns] + part[:-above]) if above else near
    told = np.minimum(near, np.uint8(_SUMS - 1)) * np.uint8(_LARGEST_TOLD + 1) + part[before:]
    counts = np.bincount(told, minlength=_SUMS * (_LARGEST_TOLD + 1)).reshape(_SUMS, -1)
    learning = _MISSED * np.count_nonzero(counts)
    bits = _entropy(counts.ravel()) - _entropy(counts.sum(axis=1)) + learning
    return bool(bits < _TOLD * _entropy(counts.sum(axis=0)))


def _entropy(counts: NDArray[np.int64]) -> float:
    """Bits of an ideal code for values that occur so often, summed in their order."""
    seen = counts[counts > 0].astype(np.float64)
    total = seen.sum(keepdims=True)
    return float((total * exact_log2(total))[0] - np.cumsum(seen * exact_log2(seen))[-1])


def _mean(context: int) -> int:
    """The mean, in 1/256, at which a context begins."""
    return ((2 + (context & 1)) << (context // 2 + 3)) - 16


def _levels(symbols: Symbols) -> Symbols:
    """The level of every symbol: twice its distance from zero, less one below it."""
    bits = 8 * symbols.itemsize
    away = symbols.view(f"i{symbols.itemsize}") - np.array(-128 if bits == 8 else 2048, f"i{symbols.itemsize}")
    levels: Symbols = ((away << 1) ^ (away >> bits - 1)).view(symbols.dtype)
    return levels


def _by_level(table: F32) -> F32:
    """A table of symbols in the order of levels."""
    return table[_order(len(table))]


@cache
def _order(alphabet: int) -> NDArray[np.int64]:
    """Symbols by their distance from zero, which stands in the middle."""
    zero = alphabet // 2
    order = np.empty(alphabet, np.int64)
    order[0::2], order[1::2] = np.arange(zero, alphabet), np.arange(zero - 1, -1, -1)
    return order
