"""What no quantizer can beat: the rate-distortion function of GenNorm sources under squared error.

Blahut-Arimoto on a discretised half line (the source is symmetric, so is the best output), and Shannon's lower bound,
to which R(D) tends as D → 0 and which is exact for the normal distribution. Rates in bits per value, distortions at
unit variance.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from perbit.gennorm.distribution import GenNorm
from perbit.gennorm.special import F64, gammainccinv


def db(distortion: ArrayLike) -> F64:
    """10 log₁₀ of a mean squared error at unit variance."""
    return 10 * np.log10(np.asarray(distortion, np.float64))


def shannon_lower_bound(beta: float, rate: ArrayLike) -> F64:
    """No code of `rate` bits has a smaller mean squared error than 2^(2(h - R))/(2πe), h the entropy in bits.

    >>> float(db(shannon_lower_bound(2.0, 1.0)).round(4))
    -6.0206
    """
    h = GenNorm.with_std(beta).entropy_bits
    return np.exp2(2 * (h - np.asarray(rate, np.float64))) / (2 * math.pi * math.e)


def distortion_rate(beta: float, rate: ArrayLike) -> F64:
    """D(R): the least mean squared error at `rate` bits per value for unit-variance GenNorm(beta), to about 0.03 dB.

    >>> float(db(distortion_rate(1.0, 1.0)).round(1))
    -6.6
    """
    rate = np.asarray(rate, np.float64)
    if np.any(rate < 0):
        raise ValueError("a rate is not negative")
    rates, log_gaps = _gaps(beta)
    # The distance to Shannon's bound is smooth and dies out exponentially; so does its continuation.
    decay = (log_gaps[-1] - log_gaps[-2]) / (rates[-1] - rates[-2])
    log_gap = np.interp(rate, rates, log_gaps) + np.minimum(decay, 0.0) * np.maximum(rate - rates[-1], 0.0)
    return np.asarray(shannon_lower_bound(beta, rate) * 10 ** (np.exp(log_gap) / 10))


@lru_cache(maxsize=64)
def _gaps(beta: float) -> tuple[F64, F64]:
    """Rising rates, and the logarithm of the decibels by which the curve lies above Shannon's bound there."""
    points = [(0.0, float(-db(shannon_lower_bound(beta, 0.0))))]
    for slope in np.geomspace(0.04, 40.0, 32):
        rate, distortion = _blahut_arimoto(beta, float(slope))
        if rate < points[-1][0] + 1e-3:  # below its critical slope a source is best coded by nothing
            continue
        points.append((rate, float(db(distortion) - db(shannon_lower_bound(beta, rate)))))
        if points[-1][1] < 5e-3:
            break
    rates, gaps = np.array(points).T
    return rates, np.log(np.maximum(gaps, 1e-6))


def _blahut_arimoto(beta: float, s: float, gap_bits: float = 2e-3) -> tuple[float, float]:
    """The point of the curve where -dR/dD = s (nats), to within gap_bits of the rate.

    x are the centroids of the cells of a sinh grid (dense at zero), p their probabilities; y the magnitudes of the
    output, q their probabilities. a(x, y) = (e^(-s(x-y)²) + e^(-s(x+y)²))/2 is the channel of both signs of y, scaled
    by e^(s d_min(x)).
    """
    dist = GenNorm.with_std(beta)
    reach = dist.alpha * float(gammainccinv(1 / beta, 1e-8)) ** (1 / beta)
    h = max(0.02, 0.3 / math.sqrt(2 * s))
    edges = h * np.sinh(np.linspace(0, math.asinh(reach / h), 301))
    p = dist.cell_moments(0, edges)
    x = dist.cell_moments(1, edges) / p
    p /= p.sum()
    y = h * np.sinh(np.linspace(0, math.asinh(reach / h), 200))
    minus, plus = (x[:, None] - y) ** 2, (x[:, None] + y) ** 2
    least = minus.min(axis=1)
    e_minus, e_plus = np.exp(-s * (minus - least[:, None])), np.exp(-s * (plus - least[:, None]))
    a = (e_minus + e_plus) / 2
    at = np.ascontiguousarray(a.T)
    q = dist.pdf(y) * np.gradient(y) + 1e-12
    q /= q.sum()
    for _ in range(2000):
        c = at @ (p / (a @ q))
        q *= c**1.9  # over-relaxed: the plain iteration has exponent 1
        q /= q.sum()
        if math.log2(float(c.max())) < gap_bits:
            break
    z = a @ q
    distortion = float(p @ (((e_minus * minus + e_plus * plus) / 2) @ q / z))
    rate = (-s * distortion - float(p @ (np.log(z) - s * least))) / math.log(2)
    return rate, distortion
