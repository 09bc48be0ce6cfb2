"""The incomplete gamma function and its relatives in numpy: all that the generalised normal distribution needs.

For a > 0, P(a, x) = (1/Γ(a)) ∫₀ˣ t^(a-1) e^(-t) dt and Q = 1 - P. A power series gives log P for x < a + 1, a continued
fraction gives log Q beyond; whichever is the smaller of the two is thus known to full relative accuracy.

>>> round(float(gammaincc(0.5, 1.0)), 12)                   # 1 - erf(1)
0.15729920705
>>> round(float(gammainccinv(0.5, gammaincc(0.5, 30.0))), 9)
30.0
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)
_HUGE = 1e300  # stands for infinity where inf - inf would appear
_MAX_TERMS = 2000
_LAST_STEP = 1e-9  # Newton squares the error: after a relative step this small there is none left

_lgamma = np.frompyfunc(math.lgamma, 1, 1)  # Python's own Lanczos sum: good to the last digits, also near 1 and 2


def gammaln(a: ArrayLike) -> F64:
    """log Γ(a) for a > 0.

    >>> round(float(gammaln(5.0)), 12) == round(math.log(24), 12)
    True
    """
    return np.asarray(_lgamma(np.asarray(a, np.float64)), np.float64)


def digamma(a: ArrayLike) -> F64:
    """ψ(a) = d log Γ(a)/da for a > 0.

    >>> round(float(digamma(1.0)), 12)                      # minus Euler's constant
    -0.577215664902
    """
    return np.asarray(_psi(np.asarray(a, np.float64)), np.float64)


def _digamma(x: float) -> float:
    """Recurrence up to x >= 10, then the asymptotic series."""
    shift = 0.0
    while x < 10:
        shift -= 1 / x
        x += 1
    r = 1 / (x * x)
    tail = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132 - r * (691 / 32760 - r / 12))))))
    return shift + math.log(x) - 0.5 / x - tail


_psi = np.frompyfunc(_digamma, 1, 1)


def _series(a: F64, x: F64, log_gamma: F64) -> F64:
    """log P(a, x) for 0 < x < a + 1: x^a e^(-x)/(aΓ(a)) · Σ xⁿ/((a+1)…(a+n))."""
    term = np.ones_like(x)
    total = np.ones_like(x)
    for n in range(1, _MAX_TERMS):
        term = term * (x / (a + n))
        total = total + term
        if not np.any(term > total * (_EPS / 4)):
            break
    return np.asarray(a * np.log(x) - x - log_gamma + np.log(total / a))


def _fraction(a: F64, x: F64, log_gamma: F64) -> F64:
    """log Q(a, x) for x >= a + 1 by Legendre's continued fraction (Lentz's algorithm)."""
    b = x + 1 - a
    c = np.full_like(x, _HUGE)
    d = 1 / b
    h = d
    for n in range(1, _MAX_TERMS):
        an = -n * (n - a)
        b = b + 2
        d = an * d + b
        d = 1 / np.where(np.abs(d) < _TINY, _TINY, d)
        c = b + an / c
        c = np.where(np.abs(c) < _TINY, _TINY, c)
        step = c * d
        h = h * step
        if not np.any(np.abs(step - 1) > _EPS):
            break
    return np.asarray(a * np.log(x) - x - log_gamma + np.log(h))


def _log_smaller(a: ArrayLike, x: ArrayLike, log_gamma: F64 | None = None) -> tuple[F64, NDArray[np.bool_]]:
    """(log P where x < a + 1, else log Q; the mask x < a + 1); log_gamma is log Γ(a) where already known."""
    a, x = np.asarray(a, np.float64), np.minimum(np.asarray(x, np.float64), _HUGE)
    if not (np.all(a > 0) and np.all(x >= 0)):
        raise ValueError("the incomplete gamma function needs a > 0 and x >= 0")
    a, x, log_gamma = np.broadcast_arrays(a, x, gammaln(a) if log_gamma is None else log_gamma)
    lower = x < a + 1
    out = np.full(x.shape, -np.inf)
    some = lower & (x > 0)
    out[some] = _series(a[some], x[some], log_gamma[some])
    out[~lower] = _fraction(a[~lower], x[~lower], log_gamma[~lower])
    return out, lower


def gammaincc(a: ArrayLike, x: ArrayLike) -> F64:
    """Q(a, x), the regularised upper incomplete gamma function, accurate however small."""
    log_smaller, lower = _log_smaller(a, x)
    return np.where(lower, -np.expm1(log_smaller), np.exp(log_smaller))


def gammainc_cells(a: ArrayLike, edges: ArrayLike) -> F64:
    """P(a, e_(i+1)) - P(a, e_i) along the last axis of ascending edges, each taken on the side without cancellation.

    >>> gammainc_cells(1.0, [0.0, math.log(2), np.inf])
    array([0.5, 0.5])
    """
    log_smaller, lower = _log_smaller(a, edges)
    smaller = np.exp(log_smaller)
    larger = -np.expm1(log_smaller)
    p = np.where(lower, smaller, larger)
    q = np.where(lower, larger, smaller)
    return np.where(lower[..., 1:], p[..., 1:] - p[..., :-1], q[..., :-1] - q[..., 1:])


def gammaincinv(a: ArrayLike, p: ArrayLike) -> F64:
    """The x with P(a, x) = p."""
    p = np.asarray(p, np.float64)
    return _inverse(a, p, 1 - p)


def gammainccinv(a: ArrayLike, q: ArrayLike) -> F64:
    """The x with Q(a, x) = q, accurate in the far tail."""
    q = np.asarray(q, np.float64)
    return _inverse(a, 1 - q, q)


def _inverse(a: ArrayLike, p: F64, q: F64) -> F64:
    """Solve P(a, x) = p, Q(a, x) = q on whichever is smaller."""
    if not np.all((p >= 0) & (q >= 0)):
        raise ValueError("a probability must lie in [0, 1]")
    a, p, q, log_gamma = np.broadcast_arrays(np.asarray(a, np.float64), p, q, gammaln(a))
    out = np.where(p <= 0, 0.0, np.inf)
    low = (p > 0) & (p <= q)
    high = (q > 0) & (q < p)
    out[low] = _invert_p(a[low], p[low], log_gamma[low])
    out[high] = _invert_q(a[high], q[high], log_gamma[high])
    return out


def _invert_p(a: F64, p: F64, log_gamma: F64) -> F64:
    """Newton on log P, concave in u = log x: from the lower bound (p Γ(a+1))^(1/a) it climbs to the root."""
    log_p = np.log(p)
    u = (log_p + log_gamma + np.log(a)) / a
    for _ in range(100):
        x = np.maximum(np.exp(u), _TINY)
        log_smaller, lower = _log_smaller(a, x, log_gamma)
        f = np.where(lower, log_smaller, np.log1p(-np.exp(np.where(lower, -np.inf, log_smaller))))
        slope = np.exp(a * u - x - log_gamma - f)
        step = np.where(u < -40, 0.0, (log_p - f) / slope)  # down there the first guess is exact
        u = u + step
        if not np.any(np.abs(step) > _LAST_STEP):
            break
    return np.exp(u)


def _invert_q(a: F64, q: F64, log_gamma: F64) -> F64:
    """Newton in x on -log Q, nearly a straight line of slope 1: convex for a > 1, concave for a < 1."""
    log_q = np.log(q)
    x = np.where(a < 1, np.exp((log_gamma + np.log(a / 2)) / a), a)  # below the median where a < 1
    for _ in range(100):
        log_smaller, lower = _log_smaller(a, x, log_gamma)
        f = np.where(lower, np.log(-np.expm1(np.where(lower, log_smaller, -1.0))), log_smaller)
        slope = np.exp((a - 1) * np.log(x) - x - log_gamma - f)
        step = (f - log_q) / slope
        x = np.maximum(x + step, x / 8)
        if not np.any(np.abs(step) > _LAST_STEP * x):
            break
    return np.asarray(x)
