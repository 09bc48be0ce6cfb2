"""Fit-Poly (DeepReduce, section 5): the sorted values as pieces of polynomials.

Differs from the paper: the basis is the polynomials that are orthogonal on the grid 0…m-1, so that coefficients are plain projections,
where the powers of x give normal equations of condition 1e28; a split must leave degree + 1 values on either side; `segments="auto"`
replaces p = ⌈2√M⌉, which depends on the unit of the gradient, by splitting until the fit is good enough; coefficients are 16 or 32 bits,
relative to the largest magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.cost import Cost
from perbit.coding.families.sorting import SortingCodec, check_order
from perbit.coding.registry import register
from perbit.coding.values import Shape, size
from perbit.errors import DecodeError
from perbit.kernels.api import F32

F64 = NDArray[np.float64]
Segment = tuple[int, int]

FLOAT_MAX = float(np.finfo(np.float32).max)
MAX_DEGREE, MAX_SEGMENTS = 15, 4096
TOLERANCE = 1e-4  # "auto" splits until the squared error is this share of the energy, …
MAX_AUTO = 64  # … or there are so many segments


@register
@dataclass(frozen=True)
class FitPoly(SortingCodec):
    """Sorted values as polynomials, a few segments each sign; the order of the values is coded too.

    Args:
        degree: of each polynomial.
        segments: polynomials for each sign; "auto" chooses.
        bits: 16 or 32, of a coefficient.
        order: how the order of the values is written: "auto" takes the smaller of "positions" and "packed".
    """

    degree: int = 5
    segments: int | Literal["auto"] = "auto"
    bits: int = 32
    order: str = "auto"

    name = "fitpoly"
    wire_id = 50
    examples = (
        "fitpoly",
        "topk(0.1) | fitpoly(3, segments=4, bits=16)",
        'topk(0.2, positions=raw32) | fitpoly(order="positions")',
        'fitpoly(0, segments=1, order="packed")',
    )

    def __post_init__(self) -> None:
        _check_range("degree", self.degree, 0, MAX_DEGREE)
        if self.segments != "auto":
            _check_range("segments", self.segments, 1, MAX_SEGMENTS)
        if self.bits not in (16, 32) or isinstance(self.bits, bool):
            raise ValueError(f"bits must be 16 or 32, got {self.bits}")
        check_order(self.order)

    def encode_sorted(self, ascending: F32, out: Writer) -> None:
        scale = np.float32(np.abs(ascending).max(initial=0))
        curve = ascending.astype(np.float64) / (float(scale) or 1.0)
        segments = self._split(curve)
        coefficients = [project(curve[lo:hi], self.degree) for lo, hi in segments]
        out.section(scale.astype("<f4").tobytes())
        out.varint(len(segments))
        for lo, hi in segments[:-1]:
            out.varint(hi - lo)
        out.section(np.concatenate([np.zeros(0), *coefficients]).astype(self._dtype).tobytes())

    def cost(self, shape: Shape) -> Cost:
        terms = self.degree + 1
        return super().cost(shape) + Cost(8 * terms * size(shape), 8 * terms * size(shape))

    def decode_sorted(self, src: Reader, n: int) -> F32:
        scale = read_scale(src)
        ends = self._read_ends(src, n)
        data = src.section("coefficients")
        counts = [min(hi - lo, self.degree + 1) for lo, hi in ends]
        if len(data) != sum(counts) * np.dtype(self._dtype).itemsize:
            raise DecodeError(f"fitpoly: {sum(counts)} coefficients do not fill {len(data)} bytes")
        coefficients = np.frombuffer(data, self._dtype).astype(np.float64)
        if not np.isfinite(coefficients).all():
            raise DecodeError("fitpoly: a coefficient is not finite")
        curve = np.empty(n, np.float64)
        for (lo, hi), own in zip(ends, np.split(coefficients, np.cumsum(counts)[:-1]), strict=False):
            curve[lo:hi] = evaluate(own, hi - lo)
        with np.errstate(over="ignore", under="ignore"):
            return np.clip(curve * scale, -FLOAT_MAX, FLOAT_MAX).astype(np.float32)

    @property
    def _dtype(self) -> str:
        return "<f4" if self.bits == 32 else "<f2"

    def _read_ends(self, src: Reader, n: int) -> list[Segment]:
        count = src.varint("number of segments", min(n, MAX_SEGMENTS))
        if (count == 0) != (n == 0):
            raise DecodeError(f"fitpoly: {count} segments cannot hold {n} values")
        segments, lo = [], 0
        for _ in range(count - 1):
            hi = lo + src.varint("length of a segment", n)
            if not lo < hi < n:
                raise DecodeError("fitpoly: the ends of the segments must ascend and stay inside")
            segments.append((lo, hi))
            lo = hi
        return [*segments, (lo, n)] if n else []

    def _split(self, curve: F64) -> list[Segment]:
        """Each sign apart, then again and again the segment with the largest squared error, where it is furthest from its chord."""
        zero = int(np.searchsorted(curve, 0.0))
        segments = [segment for segment in ((0, zero), (zero, curve.size)) if segment[0] < segment[1]]
        errors = {segment: self._error(curve, segment) for segment in segments}
        most = MAX_AUTO if self.segments == "auto" else int(self.segments)
        enough = TOLERANCE * float((curve * curve).sum()) if self.segments == "auto" else 0.0
        while len(errors) < most and sum(errors.values()) > enough:
            worst = max(errors, key=lambda segment: (errors[segment], -segment[0]))
            knot = furthest_from_chord(curve[worst[0] : worst[1]], self.degree + 1)
            if knot is None or errors[worst] == 0:
                errors[worst] = 0.0  # too short: as good as it gets
                if not any(errors.values()):
                    break
                continue
            del errors[worst]
            for part in ((worst[0], worst[0] + knot), (worst[0] + knot, worst[1])):
                errors[part] = self._error(curve, part)
        return sorted(errors)

    def _error(self, curve: F64, segment: Segment) -> float:
        part = curve[segment[0] : segment[1]]
        difference = part - evaluate(project(part, self.degree), part.size)
        return float((difference * difference).sum())


def furthest_from_chord(curve: F64, margin: int) -> int | None:
    """Where to split a segment; None if either side would have fewer than `margin` values.

    >>> furthest_from_chord(np.array([0.0, 0, 0, 0, 1, 2, 3]), 1)
    3
    """
    n = curve.size
    if n < 2 * margin or n < 3:
        return None
    chord = curve[0] + (curve[-1] - curve[0]) * (np.arange(n) / (n - 1))
    return min(max(int(np.argmax(np.abs(curve - chord))), margin), n - margin)


def project(curve: F64, degree: int) -> F64:
    """Coefficients of the least-squares polynomial in the orthogonal basis; as many as there are values if those are fewer."""
    terms = _basis(curve.size, min(degree, curve.size - 1))
    return np.array([(curve * p).sum() / (p * p).sum() for p in terms])


def evaluate(coefficients: F64, n: int) -> F64:
    """The polynomial on the grid: products and sums of float64 in a fixed order, the same bits everywhere.

    >>> evaluate(project(np.array([0.0, 1, 4, 9]), 2), 4).round(12).tolist()
    [0.0, 1.0, 4.0, 9.0]
    """
    total = np.zeros(n)
    for c, p in zip(coefficients, _basis(n, len(coefficients) - 1), strict=True):
        total = total + c * p
    return total


def _basis(n: int, degree: int) -> list[F64]:
    """P₀ = 1, P₁ = t, Pⱼ₊₁ = t·Pⱼ - bⱼ·Pⱼ₋₁ with t = (2i + 1 - n)/n, bⱼ = j²(1 - j²/n²)/(4j² - 1): orthogonal on i = 0…n-1."""
    t = (2.0 * np.arange(n) + (1 - n)) / n
    terms = [np.ones(n), t][: degree + 1]
    for j in range(1, degree):
        b = j * j * (1.0 - (j * j) / (n * n)) / (4 * j * j - 1)
        terms.append(t * terms[-1] - b * terms[-2])
    return terms


def read_scale(src: Reader) -> float:
    data = src.section("scale")
    if len(data) != 4:
        raise DecodeError(f"the scale has {len(data)} bytes instead of 4")
    scale = float(np.frombuffer(data, "<f4")[0])
    if not 0 <= scale <= FLOAT_MAX:
        raise DecodeError("the scale is negative or not finite")
    return scale


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high}, got {value!r}")
