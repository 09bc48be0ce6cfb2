"""What the quantizers that model a tensor as GenNorm share: the fit, cell boundaries, and the prior tables of its symbols."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perbit.coding.values import Floats
from perbit.errors import DecodeError
from perbit.gennorm import BETAS, Fit, fit_stats, interval_masses, nearest_beta_index, normalise
from perbit.kernels.api import F32, U32, U64

FLOAT_MAX = float(np.finfo(np.float32).max)
ZERO_SHARES = 32  # prior table j gives j/32 of the mass to exact zeros
LAPLACE = nearest_beta_index(1.0)
NORMAL = nearest_beta_index(2.0)


def fit_values(values: Floats) -> Fit | None:
    """The GenNorm fitted by moments to the non-zero values; none if all are zero."""
    total, sum_abs, sum_sq, _, n_zero = values.moments
    return fit_stats(total, sum_abs, sum_sq, values.n, n_zero) if sum_sq > 0 else None


def shape_and_sigma(values: Floats) -> tuple[int, float]:
    """The shape on the shipped grid and the standard deviation of the non-zero values, as float32 holds it."""
    fitted = fit_values(values)
    if fitted is None:
        return LAPLACE, 0.0
    return nearest_beta_index(fitted.dist.beta), float(np.float32(min(fitted.dist.std, FLOAT_MAX)))


def held_fit(values: Floats) -> tuple[float, float] | None:
    """Shape and standard deviation to hold, in few digits since they travel as text would; none if all values are zero."""
    index, sigma = shape_and_sigma(values)
    return (round(float(BETAS[index]), 6), float(f"{sigma:.5g}")) if sigma > 0 else None


def check_beta(beta: object) -> float:
    """A shape that a spec gives."""
    if isinstance(beta, bool) or not isinstance(beta, float | int) or not 0.1 <= beta <= 10:
        raise ValueError(f"beta must be 0.1 to 10, got {beta!r}")
    return float(beta)


def positive(name: str, value: object) -> float:
    """A positive number that a spec gives."""
    if isinstance(value, bool) or not isinstance(value, float | int) or not 1e-30 < value < 1e30:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return float(value)


def check_shape(beta_index: int, codec: str) -> int:
    """A shape index as it comes from a frame."""
    if beta_index >= len(BETAS):
        raise DecodeError(f"{codec}: shape index {beta_index} is above {len(BETAS) - 1}")
    return beta_index


def midpoints(levels: F32) -> F32:
    """The boundaries between ascending levels.

    >>> midpoints(np.float32([-1, 1, 2]))
    array([0. , 1.5], dtype=float32)
    """
    wide = levels.astype(np.float64)
    return ((wide[1:] + wide[:-1]) / 2).astype(np.float32)


def scaled_table(levels: NDArray[np.floating], scale: float) -> F32:
    """levels × scale, saturated: exact IEEE operations, the same on every machine."""
    return np.clip(levels.astype(np.float64) * scale, -FLOAT_MAX, FLOAT_MAX).astype(np.float32)


@dataclass(frozen=True)
class Modelled:
    """Prior tables of a GenNorm source cut into cells: table j mixes j/32 of exact zeros with the distribution.

    A chunk of 1000 symbols whose cells hold the masses of a normal distribution takes table 0:

    >>> prior = modelled(NORMAL, np.float32([-1, 1]))
    >>> prior.best(np.array([159, 682, 159], np.uint64))[0], prior.best(np.array([80, 840, 80], np.uint64))[0]
    (0, 16)
    """

    beta_index: int
    thresholds: bytes  # float32, in units of the standard deviation
    zero: int  # the symbol of the value 0
    bits: int

    def __len__(self) -> int:
        return ZERO_SHARES

    def freqs(self, index: int) -> tuple[U32, int]:
        return _table(self, index), self.bits

    def best(self, counts: U64) -> tuple[int, float]:
        inside = float(_masses(self)[self.zero]) / 2**32
        outside = 1 - float(counts[self.zero]) / float(counts.sum())
        share = 1 - outside / (1 - inside) if inside < 1 else 0.0
        index = min(max(round(ZERO_SHARES * share), 0), ZERO_SHARES - 1)
        return index, float(counts.astype(np.float64) @ (self.bits - np.log2(_table(self, index))))


def modelled(beta_index: int, thresholds: F32, bits: int = 14) -> Modelled:
    """The prior for cells between ascending thresholds; tables of 16 bits pay where many cells lie far out in the tail."""
    zero = int(np.searchsorted(thresholds, 0.0, side="right"))
    return Modelled(beta_index, thresholds.astype("<f4").tobytes(), zero, bits)


@lru_cache(maxsize=256)
def _masses(prior: Modelled) -> NDArray[np.int64]:
    return interval_masses(prior.beta_index, np.frombuffer(prior.thresholds, "<f4"))


@lru_cache(maxsize=256)
def _table(prior: Modelled, index: int) -> U32:
    masses = _masses(prior) * (ZERO_SHARES - index)
    masses[prior.zero] += index << 32
    return normalise(masses, prior.bits)


_SIXTEENTHS = 16
_ROOT = math.sqrt(math.sqrt(math.sqrt(math.sqrt(2.0))))  # 2^(1/16): square roots are exact IEEE operations
MAX_SPREAD = _SIXTEENTHS * 120


def spread_code(ratio: float) -> int:
    """A positive ratio as a whole number of sixteenths of an octave: fine enough for a prior (0.03 % of its bits).

    >>> spread_code(2.0), round(spread_value(spread_code(3.0)), 2)
    (16, 2.95)
    """
    return min(max(round(_SIXTEENTHS * math.log2(ratio)), -MAX_SPREAD), MAX_SPREAD)


def spread_value(code: int) -> float:
    """The ratio of a code, the same on every machine."""
    value = 1.0
    for _ in range(code % _SIXTEENTHS):
        value *= _ROOT
    return math.ldexp(value, code // _SIXTEENTHS)
