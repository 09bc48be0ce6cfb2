"""Symbols of a fixed width as bits, lowest first, and back."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pack(symbols_ptr, out_ptr, n, n_bytes, BITS: tl.constexpr, SIZE: tl.constexpr):
    """Every program writes bytes: each gathers the symbols that reach into it."""
    byte = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    first = (byte * 8) // BITS
    packed = tl.zeros((SIZE,), tl.int32)
    for i in tl.static_range((7 + BITS - 1) // BITS + 1):
        index = first + i
        symbol = tl.load(symbols_ptr + index, mask=(index < n) & (byte < n_bytes), other=0).to(tl.int32)
        shift = index * BITS - byte * 8  # where the symbol begins in this byte; below 0 if it began before
        left = tl.minimum(tl.maximum(shift, 0), 8)
        right = tl.maximum(-shift, 0)
        packed |= tl.where(shift < 8, (symbol << left) >> right, 0)
    tl.store(out_ptr + byte, (packed & 0xFF).to(tl.uint8), mask=byte < n_bytes)
