"""Quantizers: floats to symbols. Calls cover at most 2^20 values, which share the halves of their random key."""

from __future__ import annotations

import triton
import triton.language as tl

from perbit.torch.device.kernels.random import uniform24


@triton.jit
def clipped_floor(v, top):
    """Clipped before it becomes an integer, so that it fits."""
    return tl.minimum(tl.maximum(v, 0.0), top).to(tl.int32)


@triton.jit(do_not_specialize=["top", "low_key", "high_key"])
def uniform(x_ptr, out_ptr, n, scale, offset, top, low_key, high_key, RANDOM: tl.constexpr, SIZE: tl.constexpr):
    """clip(floor(x·scale + offset [+ u]), 0, top)"""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    v = x * tl.full((SIZE,), scale, tl.float32) + tl.full((SIZE,), offset, tl.float32)
    if RANDOM:
        v += uniform24(low_key, high_key, at)
    symbol = clipped_floor(v, top.to(tl.float32))
    tl.store(out_ptr + at, symbol.to(out_ptr.dtype.element_ty), mask=at < n)


@triton.jit(do_not_specialize=["within", "levels", "low_key", "high_key"])
def levels_random(x_ptr, scales_ptr, out_ptr, n, within, bucket, levels, low_key, high_key, SIZE: tl.constexpr):
    """levels ± min(floor(|x|·scale + u), levels). The first value is `within` values into the bucket of the first scale."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    scale = tl.load(scales_ptr + (within + at) // bucket, mask=at < n, other=0.0)
    level = clipped_floor(tl.abs(x) * scale + uniform24(low_key, high_key, at), levels.to(tl.float32))
    symbol = tl.where(x >= 0, levels + level, levels - level)
    tl.store(out_ptr + at, symbol.to(out_ptr.dtype.element_ty), mask=at < n)


@triton.jit(do_not_specialize=["n_thresholds"])
def codebook(x_ptr, thresholds_ptr, out_ptr, n, n_thresholds, STEPS: tl.constexpr, SIZE: tl.constexpr):
    """How many thresholds a value reaches; they ascend and are fewer than 2^STEPS."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    reached = tl.zeros((SIZE,), tl.int32)
    for step in tl.static_range(STEPS):
        further = reached + (1 << (STEPS - 1 - step))
        inside = (further <= n_thresholds) & (at < n)
        threshold = tl.load(thresholds_ptr + further - 1, mask=inside, other=0.0)
        reached = tl.where(inside & (x >= threshold), further, reached)
    tl.store(out_ptr + at, reached.to(out_ptr.dtype.element_ty), mask=at < n)
