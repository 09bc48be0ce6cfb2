"""Range, moments and norms: every program leaves what it found of its part; the host puts parts together, in their order.

Sums run in float64 over 16 lanes, in the order of the contract: a lane adds its values one after the other, then lanes are folded.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(65536)  # values that are summed on their own
LANES = tl.constexpr(16)
UNROLL = tl.constexpr(8)  # loads under way at a time


@triton.jit
def scan_parts(x_ptr, parts_ptr, n, SIZE: tl.constexpr):
    """Smallest and largest value, as integers in the order of the floats, and how many values are NaN or infinite."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    bits = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    part = parts_ptr + 3 * tl.program_id(0)
    tl.store(part, tl.min(tl.where(at < n, key, 0x7FFFFFFF), axis=0))
    tl.store(part + 1, tl.max(tl.where(at < n, key, -0x7FFFFFFF - 1), axis=0))
    tl.store(part + 2, tl.sum(((bits & 0x7FFFFFFF) >= 0x7F800000).to(tl.int32), axis=0))


@triton.jit
def folded(lanes, ROWS: tl.constexpr):
    """Lane j gets lane j + 8, then j + 4, j + 2, j + 1: sums of two, which know no order."""
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 8)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 4)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 2)), axis=1)
    return tl.sum(lanes, axis=1)


@triton.jit
def moment_parts(x_ptr, parts_ptr, n, steps, ROWS: tl.constexpr):
    """For each block: sum, sum of magnitudes, sum of squares, largest magnitude, how many are zero. `steps`: rounds of 8 values a lane."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * BLOCK + tl.arange(0, LANES)[None, :]
    total = tl.zeros((ROWS, LANES), tl.float64)
    total_abs = tl.zeros((ROWS, LANES), tl.float64)
    total_sq = tl.zeros((ROWS, LANES), tl.float64)
    largest = tl.zeros((ROWS, LANES), tl.float32)
    n_zero = tl.zeros((ROWS, LANES), tl.int32)
    for step in range(steps):
        for i in tl.static_range(UNROLL):
            here = at + (step * UNROLL + i) * LANES
            x = tl.load(x_ptr + here, mask=here < n, other=0.0)
            n_zero += ((x == 0) & (here < n)).to(tl.int32)
            largest = tl.maximum(largest, tl.abs(x))
            wide = x.to(tl.float64)
            total += wide
            total_abs += tl.abs(wide)
            total_sq += wide * wide
    part = parts_ptr + 5 * row
    there = row * BLOCK < n
    tl.store(part, folded(total, ROWS), mask=there)
    tl.store(part + 1, folded(total_abs, ROWS), mask=there)
    tl.store(part + 2, folded(total_sq, ROWS), mask=there)
    tl.store(part + 3, tl.max(largest, axis=1).to(tl.float64), mask=there)
    tl.store(part + 4, tl.sum(n_zero, axis=1).to(tl.float64), mask=there)


@triton.jit
def norm_parts(x_ptr, parts_ptr, n, bucket, blocks, n_rows, steps, LARGEST: tl.constexpr, ROWS: tl.constexpr):
    """For each block of each bucket (`blocks` of them in one): the sum of squares, or the largest magnitude."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_bucket = (row % blocks) * BLOCK
    first = (row // blocks) * bucket + in_bucket
    end = tl.minimum(first + tl.minimum(bucket - in_bucket, BLOCK), n)
    end = tl.where(row < n_rows, end, 0)
    at = first[:, None] + tl.arange(0, LANES)[None, :]
    found = tl.zeros((ROWS, LANES), tl.float64)
    for step in range(steps):
        for i in tl.static_range(UNROLL):
            here = at + (step * UNROLL + i) * LANES
            x = tl.load(x_ptr + here, mask=here < end[:, None], other=0.0).to(tl.float64)
            if LARGEST:
                found = tl.maximum(found, tl.abs(x))
            else:
                found += x * x
    if LARGEST:
        tl.store(parts_ptr + row, tl.max(found, axis=1), mask=row < n_rows)
    else:
        tl.store(parts_ptr + row, folded(found, ROWS), mask=row < n_rows)
