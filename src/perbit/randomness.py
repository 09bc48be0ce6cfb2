"""Seeds: 64-bit integers that are mixed, never shared, so that every use of randomness has a key of its own."""

from __future__ import annotations

import secrets
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]

_MASK = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def splitmix64(value: int) -> int:
    """One round of SplitMix64: a bijection of 64-bit integers whose output looks random."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def fold(key: int, purpose: int) -> int:
    """A new key from a key and a number that says what it is for.

    >>> fold(7, 0) == fold(7, 0), fold(7, 0) == fold(7, 1)
    (True, False)
    >>> fold(7, 1) == splitmix64(splitmix64(7) ^ 1)
    True
    """
    value = ((key & _MASK) + _GOLDEN) & _MASK  # SplitMix64 twice, written out: every frame folds a dozen times
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    value = ((value ^ (value >> 31) ^ (purpose & _MASK)) + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def key_from_seed(seed: int | None) -> int:
    """The key for a user's seed; None draws a fresh one from the operating system."""
    return secrets.randbits(64) if seed is None else fold(seed, 0x7065726269740000)


_ROUNDS = 6
PIECE = 1 << 20  # positions that are drawn at a time


def random_positions(n: int, k: int, seed: int) -> U32:
    """The first k entries of a keyed pseudo-random permutation of 0..n-1, ascending. Integer arithmetic only: both ends agree.

    A balanced Feistel network permutes the next power of four; values that fall outside are permuted again until they do not.

    >>> random_positions(10, 10, seed=1).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if k == n:
        return np.arange(n, dtype=np.uint32)
    half = max(1, ((max(2, n) - 1).bit_length() + 1) // 2)
    keys = [splitmix64(seed ^ (round_ << 32)) & 0xFFFFFFFF for round_ in range(_ROUNDS)]
    out = np.arange(k, dtype=np.uint32)
    for lo in range(0, k, PIECE):  # so that the network's many temporary arrays stay small
        part = _feistel(out[lo : lo + PIECE], half, keys)
        while (outside := np.flatnonzero(part >= n)).size:
            part[outside] = _feistel(part[outside], half, keys)
        out[lo : lo + PIECE] = part
    out.sort()
    return out


def _feistel(x: U32, half: int, keys: list[int]) -> U32:
    mask = np.uint32((1 << half) - 1)
    left, right = x >> np.uint32(half), x & mask
    for key in keys:
        left, right = right, left ^ (hash32(right ^ np.uint32(key)) & mask)
    return (left << np.uint32(half)) | right


def hash32(x: U32) -> U32:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


@lru_cache(maxsize=32)
def random_signs(seed: int, count: int) -> F32:
    """As many random signs, by integer arithmetic: both ends agree. Read-only.

    >>> random_signs(1, 6).tolist() == random_signs(1, 8).tolist()[:6]
    True
    """
    key = np.uint32(splitmix64(seed) & 0xFFFFFFFF)
    bits = hash32(hash32(np.arange(count, dtype=np.uint32) ^ key) + key)
    signs = np.where(bits >> np.uint32(31), np.float32(-1), np.float32(1))
    signs.flags.writeable = False
    return signs
