"""Keys of SketchML and SKCompress: the gaps between ascending positions, each as a class that says how long it is, and its bits.

Classes come first, then the bits of all gaps of the first class, of the second, …: one class has one width, so no bit has to be searched for.

>>> gaps = np.array([1, 300, 7], np.uint64)
>>> len(delta_binary(gaps)), len(delta_huffman(gaps))
(5, 6)
>>> read_delta_huffman(Reader(delta_huffman(gaps)), 3).take(3).tolist()
[1, 300, 7]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.families.entropy import Huffman, pack, packed_size, unpack
from perbit.coding.families.order import Words, pack_words, words_bytes
from perbit.coding.values import symbol_dtype
from perbit.errors import DecodeError
from perbit.kernels.api import U32, U64, Symbols

I64 = NDArray[np.int64]

CHUNK = 1 << 16  # gaps that are read at once: their bits are unpacked one by one
_BYTE_CLASSES = 4  # SketchML: one to four bytes
_BIT_CLASSES = 32  # SKCompress: a gap of b bits has a leading one and b - 1 bits more


def delta_binary(gaps: U64) -> bytes:
    """SketchML: two bits that say how many bytes, then the bytes of gap - 1."""
    below = gaps - np.uint64(1)
    classes = np.searchsorted(np.array([1 << 8, 1 << 16, 1 << 24], np.uint64), below, side="right").astype(np.uint8)
    return pack(classes, _BYTE_CLASSES) + _pack_classes(below, classes, [8, 16, 24, 32])


def read_delta_binary(src: Reader, count: int) -> Gaps:
    packed = src.take(packed_size(count, _BYTE_CLASSES), "lengths of gaps")
    classes = np.empty(count, np.uint8)
    unpack(packed, _BYTE_CLASSES, classes)
    return Gaps(src, classes, [8, 16, 24, 32], [1] * _BYTE_CLASSES)


def delta_huffman(gaps: U64) -> bytes:
    """SKCompress: a Huffman code of the bit length, then the bits after the leading one."""
    classes = (np.frexp(gaps.astype(np.float64))[1] - 1).astype(np.uint8)
    lead = np.uint64(1) << classes.astype(np.uint64)
    out = Writer()
    out.section(*Huffman().encode(classes, _BIT_CLASSES, None))
    out.raw(_pack_classes(gaps - lead, classes, list(range(_BIT_CLASSES))))
    return out.join()


def read_delta_huffman(src: Reader, count: int) -> Gaps:
    classes = np.empty(count, np.uint8)
    Huffman().decode(src.section("lengths of gaps"), _BIT_CLASSES, None, classes)
    widths = range(_BIT_CLASSES)
    return Gaps(src, classes, widths, [1 << width for width in widths])


class Gaps:
    """Gaps of at least 1, to be read a few at a time: a byte each is held until then."""

    def __init__(self, src: Reader, classes: Symbols, widths: Sequence[int], least: Sequence[int]) -> None:
        counts = np.bincount(classes, minlength=len(widths)).tolist()
        self.classes, self.least, self.done = classes, np.array(least, np.uint64), 0
        self.words = [
            Words(src.take(words_bytes(count, width), "gaps"), width, count)
            for count, width in zip(counts, widths, strict=True)
        ]

    def take(self, count: int) -> U64:
        """The next gaps."""
        classes = self.classes[self.done : self.done + count]
        self.done += count
        gaps = self.least[classes]
        for index in np.flatnonzero(np.bincount(classes)).tolist():
            chosen = np.flatnonzero(classes == index)
            gaps[chosen] += self.words[index].take(chosen.size)
        return gaps


def gaps_of(positions: U32, counts: I64) -> U64:
    """Positions, ascending within each group, as gaps of at least 1; the first counts from -1."""
    gaps = np.diff(positions.astype(np.int64), prepend=-1)
    starts = (np.cumsum(counts) - counts)[counts > 0]
    gaps[starts] = positions[starts].astype(np.int64) + 1
    return gaps.astype(np.uint64)


def positions_of(gaps: Gaps, counts: I64, n: int) -> Iterator[tuple[int, U32]]:
    """The positions of one group after another, with its number, a few at a time."""
    for group, count in enumerate(counts.tolist()):
        last = -1
        for lo in range(0, count, CHUNK):
            positions = last + np.cumsum(gaps.take(min(CHUNK, count - lo)).astype(np.int64))
            last = int(positions[-1])
            if last >= n:
                raise DecodeError(f"a key is not below {n}")
            yield group, positions.astype(np.uint32)


def huffman_symbols(symbols: Symbols, alphabet: int) -> bytes:
    return b"".join(bytes(piece) for piece in Huffman().encode(symbols, alphabet, None))


def read_huffman_symbols(data: memoryview, alphabet: int, count: int) -> Symbols:
    symbols: Symbols = np.empty(count, symbol_dtype(alphabet))
    Huffman().decode(data, alphabet, None, symbols)
    return symbols


def _pack_classes(values: U64, classes: Symbols, widths: list[int]) -> bytes:
    return b"".join(pack_words(values[classes == index], width) for index, width in enumerate(widths))
