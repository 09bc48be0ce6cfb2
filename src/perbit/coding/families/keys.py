"""Keys of SketchML and SKCompress: the gaps between ascending positions, each as a class that says how long it is, and its bits.

Classes come first, then the bits of all gaps of the first class, of the second, …: one class has one width, so no bit has to be searched for.

>>> gaps = np.array([1, 300, 7], np.uint64)
>>> len(delta_binary(gaps)), len(delta_huffman(gaps))
(5, 6)
>>> bool((read_delta_huffman(Reader(delta_huffman(gaps)), 3) == gaps).all())
True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.families.entropy import Huffman, pack, packed_size, unpack
from perbit.coding.families.order import pack_words, unpack_words, words_bytes
from perbit.coding.values import symbol_dtype
from perbit.errors import DecodeError
from perbit.kernels.api import U32, U64, Symbols

I64 = NDArray[np.int64]

_BYTE_CLASSES = 4  # SketchML: one to four bytes
_BIT_CLASSES = 32  # SKCompress: a gap of b bits has a leading one and b - 1 bits more


def delta_binary(gaps: U64) -> bytes:
    """SketchML: two bits that say how many bytes, then the bytes of gap - 1."""
    below = gaps - np.uint64(1)
    classes = np.searchsorted(np.array([1 << 8, 1 << 16, 1 << 24], np.uint64), below, side="right").astype(np.uint8)
    return pack(classes, _BYTE_CLASSES) + _pack_classes(below, classes, [8, 16, 24, 32])


def read_delta_binary(src: Reader, count: int) -> U64:
    packed = src.take(packed_size(count, _BYTE_CLASSES), "lengths of gaps")
    classes = np.empty(count, np.uint8)
    unpack(packed, _BYTE_CLASSES, classes)
    return _unpack_classes(src, classes, [8, 16, 24, 32]) + np.uint64(1)


def delta_huffman(gaps: U64) -> bytes:
    """SKCompress: a Huffman code of the bit length, then the bits after the leading one."""
    classes = (np.frexp(gaps.astype(np.float64))[1] - 1).astype(np.uint8)
    lead = np.uint64(1) << classes.astype(np.uint64)
    out = Writer()
    out.section(*Huffman().encode(classes, _BIT_CLASSES, None))
    out.raw(_pack_classes(gaps - lead, classes, list(range(_BIT_CLASSES))))
    return out.join()


def read_delta_huffman(src: Reader, count: int) -> U64:
    classes = np.empty(count, np.uint8)
    Huffman().decode(src.section("lengths of gaps"), _BIT_CLASSES, None, classes)
    lead = np.uint64(1) << classes.astype(np.uint64)
    return _unpack_classes(src, classes, list(range(_BIT_CLASSES))) + lead


def gaps_of(positions: U32, counts: I64) -> U64:
    """Positions, ascending within each group, as gaps of at least 1; the first counts from -1."""
    gaps = np.diff(positions.astype(np.int64), prepend=-1)
    starts = (np.cumsum(counts) - counts)[counts > 0]
    gaps[starts] = positions[starts].astype(np.int64) + 1
    return gaps.astype(np.uint64)


def positions_of(gaps: U64, counts: I64, n: int) -> U32:
    steps = np.cumsum(gaps.astype(np.int64))
    starts = np.cumsum(counts) - counts
    before = np.concatenate([[0], steps])[starts]
    positions = steps - np.repeat(before, counts) - 1
    if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < n:
        raise DecodeError(f"a key is not below {n}")
    keys: U32 = positions.astype(np.uint32)
    return keys


def huffman_symbols(symbols: Symbols, alphabet: int) -> bytes:
    return b"".join(bytes(piece) for piece in Huffman().encode(symbols, alphabet, None))


def read_huffman_symbols(data: memoryview, alphabet: int, count: int) -> Symbols:
    symbols: Symbols = np.empty(count, symbol_dtype(alphabet))
    Huffman().decode(data, alphabet, None, symbols)
    return symbols


def _pack_classes(values: U64, classes: Symbols, widths: list[int]) -> bytes:
    return b"".join(pack_words(values[classes == index], width) for index, width in enumerate(widths))


def _unpack_classes(src: Reader, classes: Symbols, widths: list[int]) -> U64:
    values = np.zeros(classes.size, np.uint64)
    for index, width in enumerate(widths):
        chosen = np.flatnonzero(classes == index)
        values[chosen] = unpack_words(src.take(words_bytes(chosen.size, width), "gaps"), width, chosen.size)
    return values
