"""The largest magnitudes: digit by digit from the top, histograms find the smallest one that is kept; then one pass collects, in order."""

from __future__ import annotations

import triton
import triton.language as tl

DIGITS = tl.constexpr(256)


@triton.jit
def magnitudes(x_ptr, at, n):
    """Whole numbers in the order of the magnitudes, NaN above infinity; -1 beyond the end."""
    bits = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(at < n, bits & 0x7FFFFFFF, -1)


@triton.jit
def digit_counts(x_ptr, counts_ptr, n, prefix, shift: tl.constexpr, SIZE: tl.constexpr):
    """How often each digit at `shift` occurs among magnitudes whose higher digits are `prefix`."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    size = magnitudes(x_ptr, at, n)
    digit = (size >> shift) & (DIGITS - 1)
    belongs = (size >> shift >> 8) == prefix
    counts = tl.histogram(digit, DIGITS, mask=belongs & (at < n))
    tl.atomic_add(counts_ptr + tl.arange(0, DIGITS), counts, mask=counts > 0)


@triton.jit
def reaching_counts(x_ptr, counts_ptr, n, threshold, SIZE: tl.constexpr):
    """For each program: how many magnitudes lie above the threshold, and how many on it."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    size = magnitudes(x_ptr, at, n)
    tl.store(counts_ptr + 2 * tl.program_id(0), tl.sum((size > threshold).to(tl.int32), axis=0))
    tl.store(counts_ptr + 2 * tl.program_id(0) + 1, tl.sum((size == threshold).to(tl.int32), axis=0))


@triton.jit
def collect(x_ptr, before_ptr, positions_ptr, values_ptr, n, threshold, n_ties, SIZE: tl.constexpr):
    """Positions and values of all magnitudes above the threshold and of the first `n_ties` on it. `before_ptr`: as `reaching_counts`,
    but what lies before each program."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    size = magnitudes(x_ptr, at, n)
    above_before = tl.load(before_ptr + 2 * tl.program_id(0))
    ties_before = tl.load(before_ptr + 2 * tl.program_id(0) + 1)
    tie = (size == threshold).to(tl.int32)
    rank = ties_before + tl.cumsum(tie, axis=0) - tie
    kept = ((size > threshold) | ((tie == 1) & (rank < n_ties))).to(tl.int32)
    slot = above_before + tl.minimum(ties_before, n_ties) + tl.cumsum(kept, axis=0) - kept
    tl.store(positions_ptr + slot, at, mask=kept == 1)
    tl.store(values_ptr + slot, tl.load(x_ptr + at, mask=kept == 1, other=0.0), mask=kept == 1)
