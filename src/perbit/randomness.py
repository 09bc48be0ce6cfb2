"""Seeds: 64-bit integers that are mixed, never shared, so that every use of randomness has a key of its own."""

from __future__ import annotations

import secrets

_MASK = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """One round of SplitMix64: a bijection of 64-bit integers whose output looks random."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def fold(key: int, purpose: int) -> int:
    """A new key from a key and a number that says what it is for.

    >>> fold(7, 0) == fold(7, 0), fold(7, 0) == fold(7, 1)
    (True, False)
    """
    return splitmix64(splitmix64(key & _MASK) ^ (purpose & _MASK))


def key_from_seed(seed: int | None) -> int:
    """The key for a user's seed; None draws a fresh one from the operating system."""
    return secrets.randbits(64) if seed is None else fold(seed, 0x7065726269740000)
