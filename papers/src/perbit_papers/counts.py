"""The papers' count of bits, log₂C(d,K) + K·R for K of d values at R bits each, and its inverse."""

from __future__ import annotations

import math


def topk_bits(d: int, k: int, bits_per_value: float) -> float:
    """log₂C(d,k) + k·R: the bits of k of d values at R bits each, positions at their entropy.

    >>> round(topk_bits(552_874, 250_000, 2))      # listed in the paper as "500 kbit"
    1049211
    """
    if not 0 <= k <= d:
        raise ValueError(f"k must lie in 0..{d}, got {k}")
    log_choices = math.lgamma(d + 1) - math.lgamma(k + 1) - math.lgamma(d - k + 1)
    return log_choices / math.log(2) + k * bits_per_value


def solve_k(d: int, n_bits: float, bits_per_value: float) -> int:
    """The largest k with `topk_bits(d, k, bits_per_value)` ≤ n_bits: the papers' equations (11)-(14).

    >>> k = solve_k(552_874, 664_000, 2)
    >>> topk_bits(552_874, k, 2) <= 664_000 < topk_bits(552_874, k + 1, 2)
    True
    """
    if n_bits < 0 or bits_per_value < 0:
        raise ValueError("a budget and a rate are not negative")
    if d * bits_per_value <= n_bits:
        return d  # everything fits, and needs no positions
    # The cost rises until k/d = 2^R/(1 + 2^R), then falls to d·R, which is too much: the answer is on the rising side.
    low, high = 0, math.ceil(d / (1 + 2.0**-bits_per_value))
    while high - low > 1:
        middle = (low + high) // 2
        fits = topk_bits(d, middle, bits_per_value) <= n_bits
        low, high = (middle, high) if fits else (low, middle)
    return low
