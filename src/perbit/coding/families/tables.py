"""Tables of the entropy codecs: integer frequencies for rANS, code lengths for Huffman, and both as a few bytes.

>>> import numpy as np
>>> freqs, bits, table = best_table(np.array([900, 90, 10], np.uint64))
>>> int(freqs.sum()) == 2**bits, len(table)
(True, 4)
>>> read_freqs(memoryview(table), 3)[0].tolist() == freqs.tolist()
True
>>> huffman_lengths(np.array([900, 90, 10, 0], np.uint64), limit=11).tolist()
[1, 2, 2, 0]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels import K
from perbit.kernels.api import U32, U64, Buffer
from perbit.kernels.reference.rans_table import (
    STATE_BITS,
    BitReader,
    BitWriter,
    check_alphabet,
    rans_lanes,
    read_classes,
    read_last,
    write_classes,
)

__all__ = [
    "STATE_BITS",
    "best_table",
    "entropy_bits",
    "huffman_lengths",
    "huffman_limit",
    "rans_lanes",
    "read_freqs",
    "read_lengths",
    "write_lengths",
]

U8 = NDArray[np.uint8]
MAX_LENGTH = 15  # of a Huffman code word


def best_table(counts: U64) -> tuple[U32, int, bytes]:
    """Frequencies, bits and serialised table for which table and stream together are about smallest."""
    return K.rans_table(counts)[:3]


def read_freqs(data: Buffer, alphabet: int) -> tuple[U32, int, int]:
    """(frequencies, bits, bytes used) from the beginning of `data`; ValueError if they are no table."""
    return K.rans_read_table(data, alphabet)


def entropy_bits(counts: U64) -> float:
    """The order-0 entropy of symbols with these counts, in bits for all of them."""
    c = counts[counts > 0].astype(np.float64)
    return float(c @ (np.log2(c.sum()) - np.log2(c)))


def huffman_limit(alphabet: int) -> int:
    """The longest code word allowed for an alphabet."""
    return 11 if alphabet <= 256 else MAX_LENGTH


# ---- Huffman code lengths


def huffman_lengths(counts: U64, limit: int) -> U8:
    """Lengths of an optimal code with no word longer than `limit` (package-merge); 0 for symbols that do not occur.

    Ties fall to the lower symbol, so every machine finds the same code. A lone symbol gets length 1.
    """
    present = np.flatnonzero(counts)
    m = len(present)
    if not 1 <= m <= 1 << limit:
        raise ValueError(f"{m} symbols occur, but words of at most {limit} bits serve 1 to {1 << limit}")
    order = present[np.argsort(counts[present], kind="stable")]
    leaves = counts[order].astype(np.int64)
    is_leaf: list[NDArray[np.bool_]] = []  # per level: which of the sorted items are symbols, not packages of two
    items = leaves
    for _ in range(limit):
        rank = np.argsort(items, kind="stable")
        is_leaf.append(rank < m)
        items = items[rank]
        paired = items[: len(items) // 2 * 2]
        items = np.concatenate([leaves, paired[::2] + paired[1::2]])
    # Taking the first 2(m-1) items of the last level, and what their packages hold: a symbol's length is the number
    # of times it is taken. Symbols are sorted, so each level takes a prefix of them.
    taken = np.zeros(m, np.int64)
    count = 2 * (m - 1)
    for flags in reversed(is_leaf):
        symbols = int(flags[:count].sum())
        taken[:symbols] += 1
        count = 2 * (count - symbols)
    lengths = np.zeros(len(counts), np.uint8)
    lengths[order] = taken if m > 1 else 1
    return lengths


# ---- serialisation: as that of rANS tables (kernels/reference/rans_table.py), where the class of a code length is itself


def write_lengths(lengths: U8) -> bytes:
    """The lengths of a complete code (or of a single symbol) as bytes."""
    present = lengths[lengths > 0].astype(np.int64)
    if len(present) == 0 or (len(present) > 1 and (2.0**-present).sum() != 1):
        raise ValueError("the lengths do not form a complete Huffman code")
    writer = BitWriter()
    for _ in write_classes(writer, lengths.tolist(), _first_length(len(lengths))):
        pass  # a class is all there is to a length
    return writer.finish()


def read_lengths(data: Buffer, alphabet: int) -> tuple[U8, int]:
    """(lengths, bytes used) from the beginning of `data`; ValueError unless the code is complete."""
    reader = BitReader(data)
    lengths = np.zeros(check_alphabet(alphabet), np.uint8)
    left = 1 << MAX_LENGTH  # of the code space
    last = read_last(reader, alphabet)
    for symbol, length in read_classes(reader, last, _first_length(alphabet), MAX_LENGTH):
        left -= 1 << (MAX_LENGTH - length)
        if left <= 0:
            raise ValueError("the Huffman code is over-full")
        lengths[symbol] = length
    if left & (left - 1):
        raise ValueError("the Huffman code is not complete")
    lengths[last] = max(MAX_LENGTH + 1 - left.bit_length(), 1)  # a lone symbol owns all the space, yet takes one bit
    return lengths, reader.finish()


def _first_length(alphabet: int) -> int:
    return min(max((alphabet - 1).bit_length(), 1), MAX_LENGTH)
