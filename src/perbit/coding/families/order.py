"""The order of values as bytes, for codecs that sort them: a permutation, checked to be one.

Two codes. *Packed*, as DeepReduce has it: ⌈log₂ n⌉ bits each. *Blocks* comes close to log₂ n!, 1.44 bits a value below log₂ n: ranks are
cut into blocks of 20; which block a value falls into is a digit of base ⌈n/20⌉, several to a word; the order inside each block is one
number below 20!.

>>> import numpy as np
>>> order = np.random.default_rng(0).permutation(369)
>>> len(encode_order(order, "packed")), len(encode_order(order, "blocks"))
(417, 347)
>>> bool((decode_order(encode_order(order, "blocks"), 369) == order).all())
True
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Piece
from perbit.errors import DecodeError
from perbit.kernels.api import U64

I64 = NDArray[np.int64]

METHODS = ("auto", "packed", "blocks")
_PACKED, _BLOCKS = 0, 1
BLOCK = 20  # 20! is the largest factorial below 2^64
_INNER_BITS = (math.factorial(BLOCK) - 1).bit_length()
_CHUNK = 1 << 16  # words that are packed at once; a multiple of 8, so that chunks end on a byte


def order_bytes(n: int, method: str) -> int:
    """Exact length of the code of n values."""
    if method == "auto":
        return min(order_bytes(n, "packed"), order_bytes(n, "blocks"))
    if method == "packed":
        return 1 + words_bytes(n, index_width(n))
    per_word, width = _digits_per_word(-(-n // BLOCK))
    return 1 + words_bytes(-(-n // per_word), width) + words_bytes(-(-n // BLOCK), _INNER_BITS)


def encode_order(order: I64, method: str = "auto") -> bytes:
    """The permutation `order` of 0…n-1: order[r] is where the value of rank r was."""
    n = order.size
    if method == "auto":
        method = min(("packed", "blocks"), key=lambda choice: order_bytes(n, choice))
    if method == "packed":
        return bytes([_PACKED]) + pack_words(order.astype(np.uint64), index_width(n))
    return bytes([_BLOCKS]) + _encode_blocks(order)


def decode_order(data: Piece, n: int) -> I64:
    """The permutation; DecodeError if it is none."""
    if len(data) < 1 or data[0] not in (_PACKED, _BLOCKS):
        raise DecodeError("order: the method is missing or unknown")
    method = "packed" if data[0] == _PACKED else "blocks"
    if len(data) != order_bytes(n, method):
        raise DecodeError(f"order: {n} values need {order_bytes(n, method)} bytes, got {len(data)}")
    body = memoryview(data)[1:]
    if method == "blocks":
        return _decode_blocks(body, n)
    order = unpack_words(body, index_width(n), n).astype(np.int64)
    check_permutation(order, n)
    return order


def check_permutation(order: I64, n: int) -> None:
    if order.size and (int(order.max()) >= n or np.bincount(order, minlength=n).max() > 1):
        raise DecodeError(f"order: not a permutation of {n} values")


def index_width(n: int) -> int:
    """Bits that hold any of 0…n-1.

    >>> index_width(1), index_width(2), index_width(369)
    (0, 1, 9)
    """
    return max(0, n - 1).bit_length()


# ---- blocks


def _encode_blocks(order: I64) -> bytes:
    n = order.size
    ranks = np.empty(n, np.int64)
    ranks[order] = np.arange(n)
    blocks = ranks // BLOCK
    by_block = np.argsort(blocks, kind="stable")
    inner = np.arange(-(-n // BLOCK) * BLOCK) % BLOCK  # the last block is filled up in order
    inner[:n] = ranks[by_block] % BLOCK
    return _encode_digits(blocks.astype(np.uint64), -(-n // BLOCK)) + pack_words(
        _factorial_numbers(inner.reshape(-1, BLOCK)), _INNER_BITS
    )


def _decode_blocks(data: memoryview, n: int) -> I64:
    base = -(-n // BLOCK)
    per_word, width = _digits_per_word(base)
    split = words_bytes(-(-n // per_word), width)
    blocks = _decode_digits(data[:split], n, base)
    sizes = np.bincount(blocks, minlength=base)
    if n and (np.any(sizes[:-1] != BLOCK) or int(sizes[-1]) != n - (base - 1) * BLOCK):
        raise DecodeError(f"order: not a permutation of {n} values")
    inner = _arrangements(unpack_words(data[split:], _INNER_BITS, base)).reshape(-1)
    by_block = np.argsort(blocks, kind="stable")
    ranks = blocks[by_block] * BLOCK + inner[:n]
    if n and int(ranks.max()) >= n:
        raise DecodeError(f"order: not a permutation of {n} values")
    order = np.empty(n, np.int64)
    order[ranks] = by_block
    return order


def _factorial_numbers(inner: I64) -> U64:
    """Each row, an arrangement of 0…19, as its number in the factorial system (Lehmer code)."""
    numbers = np.zeros(len(inner), np.uint64)
    for i in range(BLOCK):
        smaller_later = (inner[:, i + 1 :] < inner[:, i : i + 1]).sum(axis=1)
        numbers += smaller_later.astype(np.uint64) * np.uint64(math.factorial(BLOCK - 1 - i))
    return numbers


def _arrangements(numbers: U64) -> I64:
    if numbers.size and int(numbers.max()) >= math.factorial(BLOCK):
        raise DecodeError("order: a block's number is not below 20!")
    inner = np.empty((numbers.size, BLOCK), np.int64)
    for i in range(BLOCK):
        place = np.uint64(math.factorial(BLOCK - 1 - i))
        inner[:, i] = numbers // place
        numbers = numbers % place
    for i in reversed(range(BLOCK - 1)):
        inner[:, i + 1 :] += inner[:, i + 1 :] >= inner[:, i : i + 1]
    return inner


def _digits_per_word(base: int) -> tuple[int, int]:
    """How many digits share a word of how many bits, so that the fewest bits a digit are lost."""
    if base <= 1:
        return 1, 0
    choices = [(count, (base**count - 1).bit_length()) for count in range(1, 64)]
    return min((choice for choice in choices if choice[1] <= 64), key=lambda choice: choice[1] / choice[0])


def _encode_digits(digits: U64, base: int) -> bytes:
    per_word, width = _digits_per_word(base)
    padded = np.zeros(-(-digits.size // per_word) * per_word, np.uint64)
    padded[: digits.size] = digits
    words = np.zeros(padded.size // per_word, np.uint64)
    for column in reversed(range(per_word)):
        words = words * np.uint64(base) + padded[column::per_word]
    return pack_words(words, width)


def _decode_digits(data: memoryview, n: int, base: int) -> I64:
    per_word, width = _digits_per_word(base)
    words = unpack_words(data, width, -(-n // per_word))
    digits = np.zeros(words.size * per_word, np.int64)
    for column in range(per_word):
        digits[column::per_word] = words % np.uint64(max(1, base))
        words = words // np.uint64(max(1, base))
    if np.any(words) or np.any(digits[n:]):
        raise DecodeError("order: a word holds more than its digits")
    return digits[:n]


# ---- words of any width


def words_bytes(count: int, width: int) -> int:
    return (count * width + 7) // 8


def pack_words(words: U64, width: int) -> bytes:
    """The low `width` bits (at most 64) of each word, lowest first, padded with zero bits."""
    out = []
    for lo in range(0, words.size if width else 0, _CHUNK):
        bits = np.unpackbits(words[lo : lo + _CHUNK].astype("<u8").view(np.uint8), bitorder="little")
        out.append(np.packbits(bits.reshape(-1, 64)[:, :width], bitorder="little").tobytes())
    return b"".join(out)


def unpack_words(data: Piece, width: int, count: int) -> U64:
    """What pack_words packed; the padding must be zero."""
    source, words = Words(data, width, count), np.zeros(count, np.uint64)
    for lo in range(0, count, _CHUNK):
        words[lo : lo + _CHUNK] = source.take(min(_CHUNK, count - lo))
    return words


class Words:
    """What pack_words packed, to be read a few words at a time; the padding must be zero."""

    def __init__(self, data: Piece, width: int, count: int) -> None:
        if len(data) != words_bytes(count, width):
            raise DecodeError(f"{count} words of {width} bits need {words_bytes(count, width)} bytes, got {len(data)}")
        self.packed, self.width, self.bit = np.frombuffer(data, np.uint8), width, 0
        used = count * width % 8
        if used and self.packed[-1] >> used:
            raise DecodeError("the padding of packed words is not zero")

    def take(self, count: int) -> U64:
        """The next words."""
        first, skipped = divmod(self.bit, 8)
        self.bit += count * self.width
        bits = np.unpackbits(self.packed[first : (self.bit + 7) // 8], bitorder="little")[skipped:]
        wide = np.zeros((count, 64), np.uint8)
        wide[:, : self.width] = bits[: count * self.width].reshape(count, self.width)
        words: U64 = np.packbits(wide, bitorder="little").view("<u8")
        return words
