"""Sums in place: what frames hold, added to memory of the device; every product and every sum is rounded on its own."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def axpy(out_ptr, values_ptr, n, weight, SIZE: tl.constexpr):
    """out += weight·values"""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    product = tl.load(values_ptr + at, mask=at < n, other=0.0) * tl.full((SIZE,), weight, tl.float32)
    tl.store(out_ptr + at, tl.load(out_ptr + at, mask=at < n, other=0.0) + product, mask=at < n)


@triton.jit
def scatter_add(out_ptr, positions_ptr, values_ptr, n, weight, SIZE: tl.constexpr):
    """out[p] += weight·value, for positions that do not repeat."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    position = tl.load(positions_ptr + at, mask=at < n, other=0)
    product = tl.load(values_ptr + at, mask=at < n, other=0.0) * tl.full((SIZE,), weight, tl.float32)
    tl.store(out_ptr + position, tl.load(out_ptr + position, mask=at < n, other=0.0) + product, mask=at < n)


@triton.jit(do_not_specialize=["within"])
def add_symbols(
    out_ptr, symbols_ptr, table_ptr, norms_ptr, n, weight, within, bucket, HAS_NORMS: tl.constexpr, SIZE: tl.constexpr
):
    """out += weight·table[symbol], or weight·(table[symbol]·norm) where buckets have norms."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    symbol = tl.load(symbols_ptr + at, mask=at < n, other=0).to(tl.int32)
    value = tl.load(table_ptr + symbol, mask=at < n, other=0.0)
    if HAS_NORMS:
        value = value * tl.load(norms_ptr + (within + at) // bucket, mask=at < n, other=0.0)
    product = value * tl.full((SIZE,), weight, tl.float32)
    tl.store(out_ptr + at, tl.load(out_ptr + at, mask=at < n, other=0.0) + product, mask=at < n)


@triton.jit
def feedback_add(g_ptr, memory_ptr, out_ptr, n, gamma, SIZE: tl.constexpr):
    """out = g + γ·memory; out may be the memory."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    kept = tl.load(memory_ptr + at, mask=at < n, other=0.0) * tl.full((SIZE,), gamma, tl.float32)
    tl.store(out_ptr + at, tl.load(g_ptr + at, mask=at < n, other=0.0) + kept, mask=at < n)
