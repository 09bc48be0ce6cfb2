"""CO₃'s conversion to floats of at most 8 bits: x → Q(s·x)/s with a scale s fitted to each tensor (Chen et al., 2022)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer
from perbit.coding.families.modelled import (
    FLOAT_MAX,
    LAPLACE,
    MAX_SPREAD,
    Modelled,
    check_beta,
    check_shape,
    fit_values,
    held_fit,
    midpoints,
    modelled,
    positive,
    scaled_table,
    spread_code,
    spread_value,
)
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized
from perbit.errors import DecodeError
from perbit.gennorm import BETAS, GenNorm, nearest_beta_index, optimal_scale, table_scale
from perbit.gennorm import paper_scale_fp4 as eq15
from perbit.gennorm import paper_scale_fp8 as eq16
from perbit.gennorm.lowfloat import cell_centroids, max_code
from perbit.gennorm.lowfloat import levels as magnitudes
from perbit.gennorm.tables import FORMATS
from perbit.kernels.api import F32, Symbols

_HEAD = struct.Struct("<fBh")  # scale, shape index, spread
_PAPER = {(2, 1, False): eq15, (5, 2, False): eq16}
_PAPER_BETA = (0.5, 2.0)  # outside, the paper's polynomials turn away from the optimum, and (16) negative


@register
@dataclass(frozen=True)
class Fp(Quantizer):
    """Round to the nearest float of `exponent` and `mantissa` bits, ties to even, after scaling to the fitted GenNorm.

    scale: "optimal" (least squared error for the fitted shape), "paper" (equations 15 and 16, for fp(2, 1) and fp(5, 2)), or
    a number: s·alpha. absolute: s itself, whatever was fitted. beta and std: a fit that is held instead of fitting every tensor
    (`perbit.hold` sets them), so that scale and code stay the same from frame to frame. reconstruct: "grid" (the float itself) or
    "centroid" (the model's mean of its cell: less error for one byte a magnitude). full: the top exponent holds numbers too. Bias
    2^(exponent-1) - 1, subnormals, saturating.

    Differs from the paper: [1, 2, 1] and [1, 5, 2] there are sign, exponent, mantissa (not mantissa, exponent); the scale
    is in units of 1/alpha, not 1/sigma, without which its equation 15 does not hold; shapes outside [0.5, 2] take the
    polynomial's end. The scale travels, so it may be refitted as often as wanted: with every frame, unless a fit is held.

    Args:
        exponent: bits of the exponent.
        mantissa: bits of the mantissa.
        scale: "optimal", "paper", or a number.
        reconstruct: "grid" or "centroid".
        full: whether the top exponent holds numbers too.
        absolute: the scale itself, whatever was fitted.
        beta: the shape of a fit that is held.
        std: the standard deviation of that fit.
    """

    exponent: int
    mantissa: int
    scale: str | float = "optimal"
    reconstruct: str = "grid"
    full: bool = False
    absolute: float | None = None
    beta: float | None = None
    std: float | None = None

    name = "fp"
    wire_id = 17
    works_afar = True
    examples = (
        "fp(2, 1) | rans",
        'fp(2, 1, scale="paper") | huffman',
        'fp(3, 2, reconstruct="centroid") | rans',
        "fp(5, 2) | rans",
        "fp(1, 2, scale=1.5, full=true)",
        "fp(2, 1, absolute=1.0) | huffman",
        'fp(2, 1, beta=0.7, std=0.05) | huffman(prior="always")',
    )

    def __post_init__(self) -> None:
        for part in (self.exponent, self.mantissa):
            if not isinstance(part, int) or isinstance(part, bool):
                raise ValueError(f"exponent and mantissa must be whole numbers of bits, got {part}")
        if not isinstance(self.full, bool):
            raise ValueError(f"full must be true or false, got {self.full}")
        if max_code(self.exponent, self.mantissa, self.full) < 1:
            raise ValueError("a float of one exponent bit without full=true knows only zero")
        if self.reconstruct not in ("grid", "centroid"):
            raise ValueError(f'reconstruct must be "grid" or "centroid", got {self.reconstruct!r}')
        _check_scale(self)
        if self.absolute is not None:
            object.__setattr__(self, "absolute", positive("absolute", self.absolute))
        if (self.beta is None) != (self.std is None):
            raise ValueError("beta and std are held together; give both or none")
        if self.beta is not None and self.std is not None:
            object.__setattr__(self, "beta", check_beta(self.beta))
            object.__setattr__(self, "std", positive("std", self.std))

    @property
    def _format(self) -> tuple[int, int, bool]:
        return self.exponent, self.mantissa, self.full

    def omega(self, n: int) -> float:
        """1: zero is a level, so no value moves by more than itself."""
        return 1.0

    def quantize(self, values: Floats, key: int) -> Quantized:
        model = self._model(values)
        index, scale, spread, product = LAPLACE, 1.0, 0, 1.0  # if all are zero, any scale will do
        if model is not None:
            index = nearest_beta_index(model.beta)
            alpha = GenNorm.with_std(float(BETAS[index]), model.std).alpha
            product = self._product(index) if self.absolute is None else self.absolute * alpha
            scale = float(np.float32(min(max(self.absolute or product / alpha, 1e-44), FLOAT_MAX)))
            spread = spread_code(scale * model.std)
        head = _HEAD.pack(scale, index, spread)
        if self.reconstruct == "centroid":
            head += _centroid_bytes(*self._format, index, product).tobytes()
        thresholds = _thresholds(*self._format, scale)

        def fill(lo: int, hi: int, out: Symbols) -> None:
            values.quantize_codebook(lo, hi, thresholds, out)

        return Quantized([("fit", head)], len(thresholds) + 1, fill, _prior(*self._format, index, spread))

    def _model(self, values: Floats) -> GenNorm | None:
        """The distribution that is held, or fitted to these values; none if they are all zero."""
        if self.beta is not None and self.std is not None:
            return GenNorm.with_std(self.beta, self.std)
        fitted = fit_values(values)
        return None if fitted is None else fitted.dist

    def held(self, values: Floats) -> Fp:
        found = held_fit(values)
        return self if found is None else replace(self, beta=found[0], std=found[1])

    def _product(self, index: int) -> float:
        """s·alpha for a shape on the grid."""
        if isinstance(self.scale, float):
            return self.scale
        if self.scale == "optimal":
            return _optimal(*self._format, index)
        return _PAPER[self._format](min(max(float(BETAS[index]), _PAPER_BETA[0]), _PAPER_BETA[1]))

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        data, codes = bytes(src.section("fit")), max_code(*self._format)
        expected = _HEAD.size + (codes if self.reconstruct == "centroid" else 0)
        if len(data) != expected:
            raise DecodeError(f"fp: the fit has {len(data)} bytes instead of {expected}")
        scale, index, spread = _HEAD.unpack_from(data)
        if not (np.isfinite(scale) and scale > 0):
            raise DecodeError(f"fp: {scale} is no scale")
        if abs(spread) > MAX_SPREAD:
            raise DecodeError(f"fp: spread {spread} is out of range")
        levels = _levels(*self._format)
        if self.reconstruct == "centroid":
            ratios = (128 + np.frombuffer(data, np.uint8, codes, _HEAD.size).astype(np.float64)) / 256
            levels = levels * np.concatenate([ratios[::-1], [1.0], ratios])
        table = scaled_table(levels, 1 / scale)
        return Dequantizer(table, prior=_prior(*self._format, check_shape(index, "fp"), spread))


def _check_scale(codec: Fp) -> None:
    scale = codec.scale
    if isinstance(scale, str):
        if scale not in ("optimal", "paper"):
            raise ValueError(f'scale must be "optimal", "paper" or a number, got {scale!r}')
        if scale == "paper" and codec._format not in _PAPER:
            raise ValueError('the paper has scales for fp(2, 1) and fp(5, 2) only; use scale="optimal"')
        return
    if isinstance(scale, bool) or not 1e-30 < scale < 1e30:
        raise ValueError(f"scale must be positive, got {scale}")
    object.__setattr__(codec, "scale", float(scale))


@lru_cache(maxsize=64)
def _levels(e: int, m: int, full: bool) -> NDArray[np.float64]:
    """All levels in ascending order, not to be written to."""
    positive = magnitudes(e, m, full)
    both = np.concatenate([-positive[:0:-1], positive])
    both.flags.writeable = False
    return both


def _optimal(e: int, m: int, full: bool, beta_index: int) -> float:
    """From the shipped table; formats outside it are searched once and remembered."""
    shipped = (e, m) in FORMATS
    return table_scale(beta_index, e, m, full) if shipped else optimal_scale(float(BETAS[beta_index]), e, m, full)


def _thresholds(e: int, m: int, full: bool, scale: float) -> F32:
    """The smallest float32 of each cell: x rounds to level i or higher if s·x passes the middle, or meets it and i is even.

    >>> _thresholds(2, 1, False, 1.0)[5:]
    array([0.25000003, 0.75      , 1.2500001 , 1.75      , 2.5000002 ], dtype=float32)
    """
    lv = _levels(e, m, full)
    exact = (lv[1:] + lv[:-1]) / 2 / scale
    with np.errstate(over="ignore"):
        nearest = exact.astype(np.float32)
        below_is_even = (np.arange(len(exact)) - len(exact) // 2) % 2 == 0
        short = (nearest < exact) | ((nearest == exact) & below_is_even)
        return np.where(short, np.nextafter(nearest, np.float32(np.inf)), nearest)


@lru_cache(maxsize=256)
def _prior(e: int, m: int, full: bool, beta_index: int, spread: int) -> Modelled:
    middles = midpoints(_levels(e, m, full).astype(np.float32))
    with np.errstate(over="ignore"):
        return modelled(beta_index, (middles / spread_value(spread)).astype(np.float32))


@lru_cache(maxsize=256)
def _centroid_bytes(e: int, m: int, full: bool, beta_index: int, product: float) -> NDArray[np.uint8]:
    """The centroid of each positive cell as level × (128 + byte)/256. The first stays at or below its level: ω = 1 needs it."""
    ratio = cell_centroids(product, float(BETAS[beta_index]), e, m, full)
    steps = np.clip(np.rint(256 * ratio - 128), 0, 255)
    steps[0] = min(steps[0], 128)
    return steps.astype(np.uint8)
