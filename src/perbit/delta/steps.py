"""From one float to another in whole steps: how many representable values lie between, coded by what is known of the first.

A change of training moves a weight by about as much as any other, so the number of steps follows from the size of the weight: each size (the
exponent of the old value, which both ends know) has a table of its own. Bits are kept exactly, NaN and infinity too.

A piece of n values is coded as three parts (docs/deltas.md):

1. which blocks of 256 values change at all;
2. for each group of exponents the tokens of its values: small numbers of steps are tokens, larger ones a class with bits that follow;
3. those bits, class by class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.families.entropy import Rans
from perbit.errors import DecodeError
from perbit.kernels import K

Bits = NDArray[Any]  # values as unsigned whole numbers
Tokens = NDArray[np.uint8]

# Where the exponent of a format stands: first bit, number of bits.
EXPONENTS = {
    "float32": (23, 8),
    "float16": (10, 5),
    "bfloat16": (7, 8),
    "float8_e4m3fn": (3, 4),
    "float8_e5m2": (2, 5),
}
PIECE = 1 << 22  # values coded at a time
BLOCK = 256
FEWEST = 1024  # values that share a table at least
DIRECT = 32  # numbers below are tokens themselves ...
KEPT = 2  # ... of larger ones the token says the length, and so many bits after the first
_SHORTEST = DIRECT.bit_length()  # the bits of the smallest number that has a class
_RANS = Rans()


def write(old: Bits, new: Bits, dtype: str, out: Writer) -> None:
    """Append what leads from old to new: one-dimensional, of the unsigned type that stores the dtype."""
    steps = _zigzag(_ordered(new) - _ordered(old))
    changed: NDArray[np.bool_] = np.asarray(_blocks(steps).any(axis=1))
    _write_symbols(changed.astype(np.uint8), 2, out)
    kept = np.repeat(changed, BLOCK)[: len(old)]
    steps, old = steps[kept], old[kept]
    tokens, n_low = _tokens(steps)
    for group in _groups(old, dtype):
        _write_symbols(tokens[group], _alphabet(old.dtype), out)
    for length in range(1, _longest(old.dtype) + 1):
        low = steps[n_low == length] & steps.dtype.type((1 << length) - 1)
        for shift, width in _halves(length):
            out.section(
                K.pack(((low >> low.dtype.type(shift)) & low.dtype.type((1 << width) - 1)).astype(np.uint16), width)
            )


def read(old: Bits, dtype: str, src: Reader) -> Bits:
    """The new values."""
    changed = _read_symbols(-(-len(old) // BLOCK), 2, src).astype(bool)
    kept = np.repeat(changed, BLOCK)[: len(old)]
    before = old[kept]
    tokens = np.empty(len(before), np.uint8)
    for group in _groups(before, dtype):
        tokens[group] = _read_symbols(len(group), _alphabet(old.dtype), src)
    steps, n_low = _from_tokens(tokens, old.dtype)
    for length in range(1, _longest(old.dtype) + 1):
        chosen = np.flatnonzero(n_low == length)
        for shift, width in _halves(length):
            part = np.empty(len(chosen), np.uint16)
            K.unpack(src.section("low bits"), width, part)
            steps[chosen] |= part.astype(old.dtype) << old.dtype.type(shift)
    new = old.copy()
    new[kept] = _unordered(_ordered(before) + _unzigzag(steps))
    return new


def _blocks(values: Bits) -> Bits:
    padded = np.zeros(-(-len(values) // BLOCK) * BLOCK, values.dtype)
    padded[: len(values)] = values
    return padded.reshape(-1, BLOCK)


def _groups(old: Bits, dtype: str) -> Iterator[NDArray[np.intp]]:
    """Values whose exponents lie together: each group is one exponent, or as many as it takes to have FEWEST values."""
    first, width = EXPONENTS[dtype]
    exponent = ((old >> old.dtype.type(first)) & old.dtype.type((1 << width) - 1)).astype(np.uint8)
    order = np.argsort(exponent, kind="stable")
    counts = np.bincount(exponent, minlength=1 << width)
    begin = end = 0
    for left in len(old) - np.cumsum(counts):
        end = len(old) - int(left)
        if end - begin >= FEWEST and left >= FEWEST:
            yield order[begin:end]
            begin = end
    if len(old) > begin:
        yield order[begin:]


# --- numbers of steps ------------------------------------------------------------------------------------------------


def _ordered(bits: Bits) -> Bits:
    """Whole numbers in the order of the floats: one more is the next float."""
    top = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    return np.where(bits & top, ~bits, bits | top)


def _unordered(numbers: Bits) -> Bits:
    top = numbers.dtype.type(1 << (8 * numbers.dtype.itemsize - 1))
    return np.where(numbers & top, numbers ^ top, ~numbers)


def _zigzag(difference: Bits) -> Bits:
    """0, -1, 1, -2, … as 0, 1, 2, 3, …; differences wrap around."""
    signed = difference.view(np.dtype(f"i{difference.dtype.itemsize}"))
    return ((signed << 1) ^ (signed >> (8 * difference.dtype.itemsize - 1))).view(difference.dtype)


def _unzigzag(numbers: Bits) -> Bits:
    one = numbers.dtype.type(1)
    return np.asarray((numbers >> one) ^ (~(numbers & one) + one))


def _longest(dtype: np.dtype[Any]) -> int:
    """The most bits that follow a token."""
    return 8 * dtype.itemsize - 1 - KEPT


def _alphabet(dtype: np.dtype[Any]) -> int:
    return DIRECT + (8 * dtype.itemsize - _SHORTEST + 1 << KEPT)


def _halves(length: int) -> list[tuple[int, int]]:
    """Bits are packed sixteen at a time at most: where each part begins, and how long it is."""
    return [(shift, min(16, length - shift)) for shift in range(0, length, 16)]


def _tokens(steps: Bits) -> tuple[Tokens, Tokens]:
    """The token of each number, and how many of its bits follow."""
    lengths = np.frexp(steps.astype(np.float64))[1].astype(np.uint8)
    is_long = steps >= DIRECT
    n_low = np.where(is_long, lengths - (1 + KEPT), 0).astype(np.uint8)
    head = (steps >> n_low.astype(steps.dtype)) & steps.dtype.type((1 << KEPT) - 1)
    classes = DIRECT + ((lengths.astype(np.int16) - _SHORTEST) << KEPT) + head.astype(np.int16)
    return np.where(is_long, classes, steps.astype(np.int64) if steps.dtype.itemsize > 1 else steps).astype(
        np.uint8
    ), n_low


def _from_tokens(tokens: Tokens, dtype: np.dtype[Any]) -> tuple[Bits, Tokens]:
    """The numbers without the bits that follow, and how many these are."""
    known = np.arange(_alphabet(dtype))
    lengths = _SHORTEST + (np.maximum(known - DIRECT, 0) >> KEPT)
    n_low = np.where(known >= DIRECT, lengths - (1 + KEPT), 0)
    heads = (1 << KEPT) | ((known - DIRECT) & ((1 << KEPT) - 1))
    numbers = np.where(known >= DIRECT, heads << n_low, known).astype(dtype)
    return numbers[tokens], n_low.astype(np.uint8)[tokens]


# --- symbols ---------------------------------------------------------------------------------------------------------


def _write_symbols(symbols: Tokens, alphabet: int, out: Writer) -> None:
    out.section(*_RANS.encode(np.ascontiguousarray(symbols), alphabet, None) if len(symbols) else (b"",))


def _read_symbols(n: int, alphabet: int, src: Reader) -> Tokens:
    data = src.section("tokens")
    symbols = np.empty(n, np.uint8)
    if n:
        _RANS.decode(data, alphabet, None, symbols)
    elif len(data):
        raise DecodeError("tokens: bytes for no values")
    return symbols
