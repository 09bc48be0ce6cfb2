"""What every codec makes of the same values: distortion against real bits, beside what theory allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perbit.coding.codec import Codec
from perbit.coding.spec import codec
from perbit.frame import wire
from perbit.gennorm import GenNorm, distortion_rate, fit, shannon_lower_bound
from perbit.gennorm.bounds import db
from perbit.gennorm.special import digamma
from perbit.plan.template import Template

DEFAULT_SPECS = (
    "rd(?)",
    "topk(?) | fp16",
    "topk(?) | fp(5, 2) | rans",
    "topk(?) | lloyd(3) | rans",
    "topk(?) | mwl2(2, 2) | rans",
    "uniform(?) | rans",
    "fp(2, 1, scale=?) | rans",
    'fp(2, 1, scale=?, reconstruct="centroid") | rans',
    "lloyd(?)",
    "lloyd(?) | rans",
    "mwl2(?, 2) | rans",
    "patterns(16, ?)",
    "patterns(64, ?)",
    "eden(?)",
    "qsgd(?) | rans",
    "nuqsgd(?) | rans",
    "terngrad | rans",
    "natural | rans",
    "sign",
)
RATES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_MOST_POINTS = 12
_FINEST_STEP, _COARSEST_STEP = 0.05, 8.0  # in root mean squares
_HEADER_ROOM = 1.01  # a codec of one bit a value counts as such, in spite of its header


@dataclass(frozen=True)
class RatePoint:
    """One spec: real bits per value, and errors relative to those of sending nothing, in decibels."""

    spec: str
    bits_per_value: float
    mse_db: float
    weighted_db: float | None = None  # with |x|^m as weight, where that was measured


@dataclass(frozen=True)
class RateCurve:
    """One template over the values of its parameter, by rising rate."""

    spec: str
    points: tuple[RatePoint, ...]

    def rate_at(self, db: float) -> float | None:
        """The bits per value at this error, between neighbouring points; None where the curve does not reach it."""
        points = self.useful()
        errors = [-point.mse_db for point in points]
        if not points or not errors[0] <= -db <= errors[-1]:
            return None
        return math.exp(float(np.interp(-db, errors, [math.log(point.bits_per_value) for point in points])))

    def useful(self, error: str = "mse_db") -> list[RatePoint]:
        """Points that no smaller frame of the same curve beats, and that beat sending nothing."""
        best, kept = 0.0, []
        for point in self.points:
            if getattr(point, error) < best:
                best = getattr(point, error)
                kept.append(point)
        return kept

    def at(self, rate: float) -> float | None:
        """The error in decibels at this rate, between neighbouring points; None below the smallest useful frame."""
        bits = [point.bits_per_value for point in self.useful()]
        if not bits or rate * _HEADER_ROOM < bits[0]:
            return None
        return float(np.interp(rate, bits, [point.mse_db for point in self.useful()]))


class Valued(Protocol):
    """Anything with values to code."""

    @property
    def values(self) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class RateSource:
    """The values and the GenNorm fitted to them; a share of exact zeros is known to the bounds for free."""

    name: str
    values: NDArray[np.float32]
    beta: float
    zero_mass: float

    @classmethod
    def of(cls, name: str, x: NDArray[Any]) -> RateSource:
        values = np.ascontiguousarray(x, np.float32)
        fitted = fit(values)
        return cls(name, values, fitted.dist.beta, fitted.zero_mass)

    @classmethod
    def gennorm(cls, beta: float, n: int, seed: int = 1) -> RateSource:
        values = GenNorm.with_std(beta).sample(n, seed).astype(np.float32)
        return cls(f"GenNorm, β = {beta:g}", values, beta, 0.0)

    def bound_db(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """R(D), read as the least error at each rate."""
        return db(distortion_rate(self.beta, rate / (1 - self.zero_mass)))

    def shannon_db(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        return db(shannon_lower_bound(self.beta, rate / (1 - self.zero_mass)))

    def weighted_limit_db(self, rate: NDArray[np.float64], m: float) -> NDArray[np.float64]:
        """The least |x|^m-weighted error at high rates, 2^(2(h - R) + E log₂|x|^m)/(2πe) (Linder and Zamir, 1999).

        What the best code tends to as the rate grows; at low rates nothing comes near it.
        """
        dist = GenNorm.with_std(self.beta)
        log_weight = m * (math.log(dist.alpha) + float(digamma(1 / self.beta)) / self.beta) / math.log(2)
        error = np.exp2(2 * (dist.entropy_bits - rate / (1 - self.zero_mass)) + log_weight) / (2 * math.pi * math.e)
        return db(error / dist.abs_moment(m + 2))


def candidates(spec: str, source: Valued, most: int = _MOST_POINTS, reach: float = 1.0) -> list[Codec]:
    """The codecs of one spec: one, or one for each of some values of its `?`.

    Args:
        most: values, at most; twice as many steps.
        reach: how much coarser steps become.
    """
    if "?" not in spec:
        return [codec(spec)]
    template = Template(spec)
    n = source.values.size
    axis = template.axis(n)
    low, high = axis.value(0), axis.value(axis.count - 1)
    if isinstance(low, int):
        wanted = np.unique(np.round(np.geomspace(max(low, 1), high, min(axis.count, most))).astype(int))
        return [template.fill(int(value)) for value in (wanted if axis.count > most else range(low, int(high) + 1))]
    if high <= 1:  # a share of the values
        return _filled(template, np.geomspace(max(0.001, min(1.0, 20 / n)), 1.0, most))
    rms = float(np.sqrt(np.mean(np.square(source.values, dtype=np.float64))))
    if template.parameter == "step":
        return _filled(template, rms * _steps(2 * most, reach))
    return _filled(template, np.geomspace(0.005, 5, most) * (rms if template.parameter == "level" else 1.0))


def _steps(count: int, reach: float) -> NDArray[np.float64]:
    """In root mean squares: most of them where a bit more or less of the step decides how many values are sent at all."""
    fine = np.geomspace(_FINEST_STEP, 1, count // 4, endpoint=False)
    return np.concatenate([fine, np.geomspace(1, _COARSEST_STEP * reach, count - fine.size)])


def _filled(template: Template, values: NDArray[np.float64]) -> list[Codec]:
    return [template.fill(float(f"{value:.3g}")) for value in values]


def measure(source: RateSource, chosen: Codec, m: float, seed: int = 0) -> RatePoint:
    """Encode, decode, compare."""
    frame = wire.encode(source.values, chosen, seed=seed)
    x = source.values.reshape(-1).astype(np.float64)
    error = (wire.decode(frame, expect_shape=source.values.shape).reshape(-1) - x) ** 2
    weight = np.abs(x) ** m
    relative = float(error.sum() / (x * x).sum()), float((weight * error).sum() / (weight * x * x).sum())
    mse_db, weighted_db = (float(db(max(value, 1e-30))) for value in relative)
    return RatePoint(str(chosen), 8 * len(frame) / x.size, mse_db, weighted_db)


def sweep(source: RateSource, specs: Sequence[str], m: float) -> Iterator[RateCurve]:
    """The curve of each spec, as it is ready."""
    for spec in specs:
        points = [measure(source, chosen, m) for chosen in candidates(spec, source)]
        yield RateCurve(spec, tuple(sorted(points, key=lambda point: point.bits_per_value)))


def summary(source: RateSource, curves: Sequence[RateCurve]) -> dict[str, dict[float, float | None]]:
    """Decibels of the bound and of every curve at the rates of the table."""
    bound = source.bound_db(np.array(RATES))
    rows: dict[str, dict[float, float | None]] = {"bound R(D)": dict(zip(RATES, map(float, bound), strict=True))}
    return rows | {curve.spec: {rate: curve.at(rate) for rate in RATES} for curve in curves}
