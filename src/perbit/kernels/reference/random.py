"""Counter-based random numbers in numpy (see kernels/README.md)."""

from __future__ import annotations

import numpy as np

from perbit.kernels.api import F32

_COUNTER_BITS = 20
_WORD = (1 << 64) - 1


def splitmix64(v: int) -> int:
    v = (v + 0x9E3779B97F4A7C15) & _WORD
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    v = (v ^ v >> 27) * 0x94D049BB133111EB & _WORD
    return v ^ v >> 31


def _within_chunk(key: int, begin: int, end: int) -> F32:
    """uniform24 for indices begin..end that share their leading bits."""
    z = splitmix64(key + (begin >> _COUNTER_BITS) & _WORD)
    k0, k1 = np.uint32(z & 0xFFFFFFFF), np.uint32(z >> 32)
    first = begin & (1 << _COUNTER_BITS) - 1
    x = np.arange(first, first + end - begin, dtype=np.uint32)
    x *= np.uint32(0x9E3779B9)
    x += k0
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= k1
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return (x >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def uniform24(key: int, begin: int, end: int) -> F32:
    """The random numbers of the elements with global indices begin..end."""
    result = np.empty(end - begin, dtype=np.float32)
    at = begin
    while at < end:
        stop = min(end, (at >> _COUNTER_BITS) + 1 << _COUNTER_BITS)
        result[at - begin : stop - begin] = _within_chunk(key, at, stop)
        at = stop
    return result
