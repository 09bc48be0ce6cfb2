"""`uniform24` of the contract: random numbers that follow from a key and an index, the same on every machine."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform24(low_key, high_key, index):
    """For indices below 2^20: `low_key` and `high_key` are the halves of the key of this stretch, as signed 32-bit numbers."""
    x = index.to(tl.uint32) * 0x9E3779B9 + low_key.to(tl.uint32, bitcast=True)
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= high_key.to(tl.uint32, bitcast=True)
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return (x >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
