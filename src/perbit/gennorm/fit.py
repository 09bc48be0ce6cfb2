"""Fit a GenNorm to a tensor from one pass over it: by moments (the default) or by maximum likelihood on a histogram.

Real gradients hold many exact zeros (dead units), on which the likelihood of a peaked density diverges; they are
counted apart as `zero_mass` and the distribution is fitted to the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perbit.errors import NonFiniteError
from perbit.gennorm.distribution import GenNorm
from perbit.gennorm.special import F64, digamma, gammaln
from perbit.kernels import K

Method = Literal["moments", "mle"]
Centre = Literal["zero", "mean"]

MIN_BETA, MAX_BETA = 0.1, 10.0
BINS = 2048  # float32 magnitudes by exponent and 3 mantissa bits
_FIRST_NONFINITE = 2040


@dataclass(frozen=True)
class Fit:
    """A fitted distribution; the share of exact zeros (0 if not set apart); the number n of values, zeros included."""

    dist: GenNorm
    zero_mass: float
    n: int
    method: Method


def fit(x: ArrayLike, method: Method = "moments", zero_mass: bool = True, mu: Centre = "zero") -> Fit:
    """Fit GenNorm to the values of x; beta is confined to [0.1, 10].

    mu="zero" (gradients are centred, and codecs code magnitudes) takes one pass; mu="mean" a second one around the
    mean.

    >>> f = fit(GenNorm(beta=0.8, alpha=3.0).sample(100_000, seed=1))
    >>> abs(f.dist.beta - 0.8) < 0.02, abs(f.dist.alpha - 3) < 0.15
    (True, True)
    >>> fit([0, 0, 0, 1.0, -2.0]).zero_mass
    0.6
    """
    values = np.ascontiguousarray(x, np.float32).reshape(-1)
    hist = np.zeros(BINS, np.uint64) if method == "mle" else None
    total, sum_abs, sum_sq, _, n_zero = K.moments(values, hist)
    n = values.size
    if mu == "zero":
        return fit_stats(total, sum_abs, sum_sq, n, n_zero, hist, method=method, zero_mass=zero_mass)
    kept = values[values != 0] if zero_mass and n_zero else values
    centre = _finite(total) / max(kept.size, 1)
    hist = np.zeros(BINS, np.uint64) if method == "mle" else None
    _, sum_abs, sum_sq, _, _ = K.moments(kept - np.float32(centre), hist)
    dist = fit_stats(0.0, sum_abs, sum_sq, kept.size, 0, hist, method=method, zero_mass=False).dist
    return Fit(GenNorm(dist.beta, dist.alpha, centre), 1 - kept.size / n, n, method)


def fit_stats(
    sum: float,
    sum_abs: float,
    sum_sq: float,
    n: int,
    n_zero: int,
    hist: NDArray[np.uint64] | None = None,
    *,
    method: Method | None = None,
    zero_mass: bool = True,
) -> Fit:
    """Fit a zero-mean GenNorm from the results of the `moments` kernel; by default by likelihood if given a histogram.

    >>> fit_stats(0.0, 1.0e4, 2.0e4, 10_000, 0).dist.beta.__round__(6)       # (E|x|)²/E x² = 1/2: Laplace
    1.0
    """
    method = method or ("moments" if hist is None else "mle")
    if method not in ("moments", "mle"):
        raise ValueError(f"method must be 'moments' or 'mle', got {method!r}")
    _finite(sum_sq)
    count = n - n_zero if zero_mass else n
    if sum_sq <= 0:
        raise ValueError(f"no non-zero values among {n}: there is no distribution to fit")
    share = n_zero / n if zero_mass else 0.0
    if method == "moments":
        rms = math.sqrt(sum_sq / count)
        return Fit(GenNorm.with_std(beta_of_ratio(sum_abs * sum_abs / (count * sum_sq)), rms), share, n, method)
    if hist is None:
        raise ValueError("maximum likelihood needs the histogram of the moments kernel")
    counts = hist.astype(np.float64)
    if zero_mass:
        counts[0] -= n_zero
    if counts[_FIRST_NONFINITE:].any():
        _finite(math.nan)
    return Fit(_maximum_likelihood(counts), share, n, method)


def fit_normal(x: ArrayLike) -> GenNorm:
    """The normal distribution of the same mean and variance: the maximum-likelihood fit.

    >>> fit_normal([-1.0, 1.0]).std.__round__(12)
    1.0
    """
    values = np.ascontiguousarray(x, np.float32).reshape(-1)
    total, _, sum_sq, _, _ = K.moments(values, None)
    centre = _finite(total) / values.size
    return GenNorm.normal(centre, math.sqrt(_finite(sum_sq) / values.size - centre * centre))


def fit_laplace(x: ArrayLike) -> GenNorm:
    """The Laplace distribution of the same mean absolute deviation around the mean (likelihood: the median).

    >>> fit_laplace([-3.0, 1.0]).alpha
    2.0
    """
    values = np.ascontiguousarray(x, np.float32).reshape(-1)
    centre = _finite(K.moments(values, None)[0]) / values.size
    return GenNorm.laplace(centre, K.moments(values - np.float32(centre), None)[1] / values.size)


def ratio_of_beta(beta: ArrayLike) -> F64:
    """(E|x|)²/E x² = Γ(2/β)²/(Γ(1/β)Γ(3/β)): rises from 0 over 1/2 (Laplace) and 2/π (normal) to 3/4 (uniform)."""
    a = 1 / np.asarray(beta, np.float64)
    return np.exp(2 * gammaln(2 * a) - gammaln(a) - gammaln(3 * a))


@cache
def _ratio_table() -> tuple[F64, F64]:
    beta = np.geomspace(MIN_BETA, MAX_BETA, 8192)  # fine enough for linear interpolation to 1e-6
    return ratio_of_beta(beta), np.log(beta)


def beta_of_ratio(ratio: float) -> float:
    """The inverse of `ratio_of_beta`, confined to [0.1, 10]: one look-up in a table, precise to 1e-6.

    >>> round(beta_of_ratio(0.5), 5), round(beta_of_ratio(2 / math.pi), 5), round(beta_of_ratio(1.0), 5)
    (1.0, 2.0, 10.0)
    """
    return math.exp(float(np.interp(ratio, *_ratio_table())))


@cache
def _bins() -> tuple[F64, F64]:
    """The centre and the width of each finite bin of the histogram."""
    edges = (np.arange(_FIRST_NONFINITE + 1, dtype=np.uint32) << np.uint32(20)).view(np.float32).astype(np.float64)
    edges[-1] = 2.0**128
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def _maximum_likelihood(counts: F64) -> GenNorm:
    """Maximise the likelihood over beta, with the best alpha for each beta, α^β = βS, put in its place.

    With S = mean |x|^β and S' = dS/dβ the score vanishes where g(β) = β + ψ(1/β) + log(βS) - βS'/S does; g is positive
    below the maximum. The means are sums over the bins: to second order in the relative deviation δ from the centre c
    of a bin, |x|^β = c^β(1 + βδ + β(β-1)δ²/2), where E δ² = r (a uniform density) and E δ = κr with κ = d log p/d log x
    = -c^β/S (its slope).
    """
    used = np.flatnonzero(counts[:_FIRST_NONFINITE])
    centre, width = _bins()
    centre, r = centre[used], (width[used] / centre[used]) ** 2 / 12
    weight = counts[used] / counts[used].sum()
    unit = math.sqrt(float(weight @ centre**2))  # keeps powers away from overflow
    log_c = np.log(centre / unit)

    def means(beta: float) -> tuple[float, float]:
        power = np.exp(beta * log_c)
        kappa = np.maximum(-power / float(weight @ power), -16)  # steeper, the expansion fails (far from the root)
        t = power * (1 + r * beta * (kappa + (beta - 1) / 2))
        return float(weight @ t), float(weight @ (t * log_c + power * r * (kappa + beta - 0.5)))

    def g(log_beta: float) -> float:
        beta = math.exp(log_beta)
        s, ds = means(beta)
        return beta + float(digamma(1 / beta)) + math.log(beta * s) - beta * ds / s

    beta = math.exp(_root(g, math.log(MIN_BETA), math.log(MAX_BETA)))
    return GenNorm(beta, unit * (beta * means(beta)[0]) ** (1 / beta))


def _root(g: Callable[[float], float], lo: float, hi: float) -> float:
    """The root of g, positive on its left, by regula falsi (Illinois); without a root, the end nearer to one."""
    g_lo, g_hi = g(lo), g(hi)
    if g_lo <= 0 or g_hi >= 0:
        return lo if g_lo <= 0 else hi
    side = 0
    for _ in range(100):
        x = (lo * g_hi - hi * g_lo) / (g_hi - g_lo)
        y = g(x)
        if abs(y) < 1e-12 or hi - lo < 1e-9:
            break
        if y > 0:
            lo, g_lo, g_hi = x, y, g_hi / 2 if side > 0 else g_hi
            side = 1
        else:
            hi, g_hi, g_lo = x, y, g_lo / 2 if side < 0 else g_lo
            side = -1
    return x


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise NonFiniteError("the values to fit hold NaN or infinity")
    return value
