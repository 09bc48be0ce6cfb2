"""Fit-DExp (DeepReduce, section 6.1): the sorted magnitudes of each sign as a·rˣ + c·qˣ.

The exponentials are fitted through the integral equation of their sum: y = C₀·SS + C₁·S + C₂·x + C₃ is linear in its coefficients, where
S is the integral of y and SS that of S; the rates solve z² = C₁·z + C₀, then a and c follow by least squares.

Differs from the paper: each sign is fitted by itself, which costs 24 bytes and saves the sign bits; rates are sent as factors a step, so
that decoding needs products and sums only (no exp, whose last bit depends on the machine); where the radicand is negative or a rate
overflows, one exponential or a constant remains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.families.fitpoly import FLOAT_MAX, read_scale
from perbit.coding.families.sorting import SortingCodec, check_order
from perbit.coding.registry import register
from perbit.errors import DecodeError
from perbit.kernels.api import F32

F64 = NDArray[np.float64]
_CURVE = np.dtype([("weights", "<f4", 2), ("factors", "<f8", 2)])
_LARGEST_EXPONENT = 60.0  # of a rate over the whole curve: e^±60 spans more than any gradient


@register
@dataclass(frozen=True)
class FitDExp(SortingCodec):
    """Sorted magnitudes as a sum of two exponentials, each sign apart; the order of the values is coded too.

    Args:
        order: how the order of the values is written: "auto" takes the smaller of "positions" and "packed".
    """

    order: str = "auto"

    name = "fitdexp"
    wire_id = 51
    examples = ("fitdexp", "topk(0.1) | fitdexp", 'topk(0.2, positions=raw32) | fitdexp(order="positions")')

    def __post_init__(self) -> None:
        check_order(self.order)

    def encode_sorted(self, ascending: F32, out: Writer) -> None:
        scale = np.float32(np.abs(ascending).max(initial=0))
        curve = ascending.astype(np.float64) / (float(scale) or 1.0)
        negatives = int(np.searchsorted(curve, 0.0))
        signs = (-curve[:negatives][::-1], curve[negatives:])
        out.section(scale.astype("<f4").tobytes())
        out.varint(negatives)
        out.section(b"".join(fit(magnitudes).tobytes() for magnitudes in signs if magnitudes.size))

    def decode_sorted(self, src: Reader, n: int) -> F32:
        scale = read_scale(src)
        negatives = src.varint("number of negative values", n)
        sizes = [size for size in (negatives, n - negatives) if size]
        data = src.section("coefficients")
        if len(data) != len(sizes) * _CURVE.itemsize:
            raise DecodeError(
                f"fitdexp: {len(sizes)} curves need {len(sizes) * _CURVE.itemsize} bytes, got {len(data)}"
            )
        curves = [evaluate(own, size) for own, size in zip(np.frombuffer(data, _CURVE), sizes, strict=True)]
        if negatives:
            curves[0] = -curves[0][::-1]
        with np.errstate(over="ignore", under="ignore"):
            curve = np.concatenate([np.zeros(0), *curves]) * scale
            return np.clip(curve, -FLOAT_MAX, FLOAT_MAX).astype(np.float32)


def evaluate(curve: np.void, n: int) -> F64:
    """weights[0]·factors[0]^i + weights[1]·factors[1]^i for i = 0…n-1; DecodeError where that is no number."""
    weights, factors = curve["weights"].astype(np.float64), curve["factors"].astype(np.float64)
    if not (np.isfinite(weights).all() and np.isfinite(factors).all() and (factors > 0).all()):
        raise DecodeError("fitdexp: a coefficient is not finite, or a factor is not positive")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        total: F64 = weights[0] * powers(factors[0], n) + weights[1] * powers(factors[1], n)
    if not np.isfinite(total).all():
        raise DecodeError("fitdexp: the curve overflows")
    return total


def powers(factor: float, n: int) -> F64:
    """1, f, f², … in a fixed order of products: what is known times its last power, doubling.

    >>> powers(2.0, 6).tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    """
    out = np.empty(n)
    out[:1] = 1.0
    known = 1
    while known < n:
        more = min(known, n - known)
        out[known : known + more] = out[:more] * (out[known - 1] * factor)
        known += more
    return out


def fit(y: F64) -> np.void:
    """The curve, of those that the equations give, with the smallest squared error as it will be decoded."""
    candidates = [_curve(y, rates) for rates in _rates(y)]
    return min(candidates, key=lambda curve: _error(y, curve))


def _error(y: F64, curve: np.void) -> float:
    difference = y - evaluate(curve, y.size)
    return float((difference * difference).sum())


def _rates(y: F64) -> Iterator[tuple[float, float]]:
    """Pairs of rates over the whole curve (x from 0 to 1) to try."""
    yield 0.0, 0.0
    last, first = float(y[-1]), float(y[0])
    if first > 0:
        single = math.log(last / first)
        yield min(single, _LARGEST_EXPONENT), 0.0
    if y.size >= 5:
        pair = _integral_equation(y)
        if pair is not None:
            yield pair


def _integral_equation(y: F64) -> tuple[float, float] | None:
    x = np.arange(y.size) / (y.size - 1)
    s = _integral(y)
    columns = [_integral(s), s, x, np.ones(y.size)]
    solution = _least_squares(columns, y)
    if solution is None:
        return None
    c0, c1 = solution[:2]
    radicand = c1 * c1 + 4 * c0
    if not radicand >= 0:
        return None
    low, high = (c1 - math.sqrt(radicand)) / 2, (c1 + math.sqrt(radicand)) / 2
    return (low, high) if -_LARGEST_EXPONENT <= low <= high <= _LARGEST_EXPONENT else None


def _integral(y: F64) -> F64:
    """By trapezoids, from 0, over x from 0 to 1."""
    steps = (y[1:] + y[:-1]) / (2 * (y.size - 1))
    return np.concatenate([[0.0], np.cumsum(steps)])


def _curve(y: F64, rates: tuple[float, float]) -> np.void:
    """The curve with these rates and the best weights."""
    steps = max(1, y.size - 1)
    factors = [_rounded(math.exp(rate / steps)) for rate in rates]
    columns = [powers(factor, y.size) for factor in factors]
    weights = _least_squares(columns, y) if rates[0] != rates[1] else None
    if weights is None:
        weights = [float((columns[0] * y).sum() / (columns[0] * columns[0]).sum()), 0.0]
    return np.array([(np.clip(weights, -FLOAT_MAX, FLOAT_MAX), factors)], _CURVE)[0]  # type: ignore[no-any-return]


def _rounded(factor: float) -> float:
    """To 40 bits after the point, so that the last bits of exp, which differ between machines, do not reach the frame."""
    return math.ldexp(round(math.ldexp(factor, 40)), -40)


def _least_squares(columns: list[F64], y: F64) -> list[float] | None:
    """Solve the normal equations by elimination with pivots, in plain floats; None where they are singular."""
    size = len(columns)
    rows = [[float((a * b).sum()) for b in (*columns, y)] for a in columns]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if not abs(rows[i][i]) > 1e-300:
            return None
        for row in range(size):
            if row != i:
                share = rows[row][i] / rows[i][i]
                rows[row] = [value - share * top for value, top in zip(rows[row], rows[i], strict=True)]
    solution = [rows[i][-1] / rows[i][i] for i in range(size)]
    return solution if all(map(math.isfinite, solution)) else None
