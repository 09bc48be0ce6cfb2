"""The pre-scale s for which a low-bit float format quantizes a GenNorm source best: ĝ = Q(s·g)/s.

A format has e exponent bits, m mantissa bits, bias 2^(e-1)-1 and subnormals. Following CO₃ the top exponent code stays
unused (fp4 = E2M1 is {0, ±.5, ±1, ±1.5, ±2, ±3}); with full=True it holds ordinary numbers.

Differs from the paper, which calls s an exponent bias, labels [1, 2, 1] as sign, mantissa, exponent (it is sign,
exponent, mantissa) and divides by the standard deviation: its polynomials hold in units of 1/alpha.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from perbit.gennorm.distribution import GenNorm
from perbit.gennorm.special import F64


def max_code(e: int, m: int, full: bool = False) -> int:
    """The largest magnitude code in use.

    >>> max_code(2, 1), max_code(2, 1, full=True), max_code(5, 2)
    (5, 7, 123)
    """
    if not (e >= 1 and m >= 0 and e + m <= 7):
        raise ValueError(f"a low-bit float needs e >= 1, m >= 0 and e + m <= 7, got e={e}, m={m}")
    return (1 << (e + m)) - 1 - (0 if full else 1 << m)


def levels(e: int, m: int, full: bool = False) -> F64:
    """The magnitudes of the format in order of their codes, zero first.

    >>> levels(2, 1).tolist(), float(levels(5, 2)[-1])
    ([0.0, 0.5, 1.0, 1.5, 2.0, 3.0], 57344.0)
    """
    codes = np.arange(max_code(e, m, full) + 1)
    exponent, mantissa = codes >> m, codes & ((1 << m) - 1)
    significand = (mantissa + np.where(exponent > 0, 1 << m, 0)) / (1 << m)
    bias = (1 << (e - 1)) - 1
    return np.asarray(np.ldexp(significand, np.maximum(exponent, 1) - bias), np.float64)


def _cells(scale: ArrayLike, beta: float, lv: F64, orders: int) -> list[F64]:
    """∫p, ∫xp, … (so many orders) over the cell of each level on the positive half line, for every scale; alpha = 1."""
    edges = np.concatenate([[0.0], (lv[1:] + lv[:-1]) / 2, [np.inf]])
    edges = edges / np.asarray(scale, np.float64)[..., None]
    dist = GenNorm(beta, 1.0)
    return [dist.cell_moments(k, edges) for k in range(orders)]


def mse(scale: ArrayLike, beta: float, e: int, m: int, full: bool = False) -> F64:
    """E(x - Q(s·x)/s)² of GenNorm(beta, alpha=1): round to nearest, saturating; vectorised over scale.

    >>> relative = mse(0.652, 1.0, 2, 1) / GenNorm.laplace().variance
    >>> round(float(relative), 4)
    0.0364
    """
    lv = levels(e, m, full)
    p, m1, m2 = _cells(scale, beta, lv, 3)
    c = lv / np.asarray(scale, np.float64)[..., None]
    return np.asarray(2 * np.sum(m2 - 2 * c * m1 + c * c * p, axis=-1))


def cell_centroids(scale: float, beta: float, e: int, m: int, full: bool = False) -> F64:
    """The mean of the source over the cell of each level but zero, as a multiple of the level; alpha = 1.

    >>> cell_centroids(0.652, 1.0, 2, 1).round(3)
    array([0.937, 0.968, 0.979, 1.027, 1.051])
    """
    lv = levels(e, m, full)[1:]
    p, m1 = (cells[1:] for cells in _cells(scale, beta, levels(e, m, full), 2))
    seen = p > 1e-300
    return np.where(seen, m1 * scale / (np.where(seen, p, 1.0) * lv), 1.0)


def _slope(scale: float, beta: float, lv: F64) -> float:
    """A quarter of dMSE/d(1/s); the moving cell edges contribute nothing, as they lie midway between levels."""
    p, m1 = _cells(scale, beta, lv, 2)
    return float(np.sum(lv * (lv / scale * p - m1)))


@lru_cache(maxsize=1024)
def optimal_scale(beta: float, e: int, m: int, full: bool = False) -> float:
    """The s that minimises `mse`.

    The MSE of a wide format ripples once per octave of s, equally well over many decades. Its minimum is searched on a
    grid of 16 points per octave; of points equal within 1e-7 the smallest s wins, which leaves most room before
    saturation. The minimum beside it is the root of the derivative, found by bisection.

    >>> round(optimal_scale(1.0, 2, 1), 3)
    0.652
    """
    lv = levels(e, m, full)
    if len(lv) < 2:
        raise ValueError("a format whose only level is zero has no optimal scale")
    # From the smallest level far above the standard deviation to the largest at a quarter of it.
    top = lv[-1] / GenNorm(beta, 1.0).std
    octaves = int(np.log2(lv[-1] / lv[1])) + 5 + 2
    grid = 4 * top * 2.0 ** (np.arange(-16 * octaves, 1) / 16)
    error = mse(grid, beta, e, m, full)
    i = int(np.flatnonzero(error <= error.min() * (1 + 1e-7))[0])
    while error[i + 1] < error[i]:  # from the edge of the tolerance down into its valley
        i += 1
    lo, hi = float(grid[i - 1]), float(grid[i + 1])
    for _ in range(60):
        s = (lo + hi) / 2
        if _slope(s, beta, lv) > 0:  # the error grows with 1/s: s is still too small
            lo = s
        else:
            hi = s
    return (lo + hi) / 2


def paper_scale_fp4(beta: float) -> float:
    """Eq. (15) of CO₃ for E2M1, in units of 1/alpha; within 4 % of the optimum for beta in [.5, 2].

    >>> round(paper_scale_fp4(1.0), 3)
    0.65
    """
    return 0.46 - 2.85 * beta + 5.37 * beta**2 - 2.85 * beta**3 + 0.52 * beta**4


def paper_scale_fp8(beta: float) -> float:
    """Eq. (16) of CO₃ for E5M2, in units of 1/alpha; negative, hence useless, below about .37 and above about 2.13.

    >>> round(paper_scale_fp8(1.0), 1)
    2933.4
    """
    return -5793 + 35605.5 * beta - 76511.8 * beta**2 + 68153 * beta**3 - 18520.3 * beta**4
