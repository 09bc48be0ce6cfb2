"""Uniform quantization: between the smallest and the largest value, or clipped where that costs the least error."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer
from perbit.coding.families.loading import optimal_loading
from perbit.coding.families.modelled import FLOAT_MAX, fit_values
from perbit.coding.families.priors import Geometric, geometric
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized
from perbit.errors import DecodeError
from perbit.gennorm import nearest_beta_index
from perbit.kernels import K
from perbit.kernels.api import F32, Symbols

MAX_BITS = 12  # alphabets of the entropy coders end at 4096 symbols
_SAFE = (1e-30, 1e30)  # ranges in which float32 arithmetic neither overflows nor loses digits


@register
@dataclass(frozen=True)
class Uniform(Quantizer):
    """2^bits equally spaced levels from minimum to maximum, rounded to the nearest (or, with `random`, up or down so that the mean is right).

    loading: "minmax"; "optimal" clips at the multiple of the standard deviation (of the non-zero values) that has the least
    squared error for the fitted GenNorm; a number clips at that multiple. The range never exceeds minimum to maximum.

    Args:
        bits: bits of a level, 1 to 12.
        random: whether to round at random, so that the mean is right.
        loading: where the range ends: "minmax", "optimal", or a number of standard deviations.
    """

    bits: int
    random: bool = False
    loading: str | float = "minmax"

    name = "uniform"
    wire_id = 7
    works_afar = True
    examples = (
        "uniform(4)",
        "uniform(1) | rans",
        "uniform(6, random=true) | rans",
        "uniform(12) | rans",
        'uniform(3, loading="optimal") | rans',
    )

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or not 1 <= self.bits <= MAX_BITS:
            raise ValueError(f"bits must be 1 to {MAX_BITS}, got {self.bits}")
        if not isinstance(self.random, bool):
            raise ValueError(f"random must be true or false, got {self.random}")
        if isinstance(self.loading, str):
            if self.loading not in ("minmax", "optimal"):
                raise ValueError(f'loading must be "minmax", "optimal" or a number, got {self.loading!r}')
            return
        if isinstance(self.loading, bool) or not 0 < self.loading < 1e30:
            raise ValueError(f"loading must be positive, got {self.loading}")
        object.__setattr__(self, "loading", float(self.loading))

    @property
    def unbiased(self) -> bool:
        return self.random and self.loading == "minmax"

    def omega(self, n: int) -> float:
        """n/(2^bits - 1)²: the range is at most 2|x|, the error half a step (or, when random, of variance a quarter step²).

        Nothing is promised where values are clipped.
        """
        return math.inf if self.loading != "minmax" else n / ((1 << self.bits) - 1) ** 2

    def quantize(self, values: Floats, key: int) -> Quantized:
        low, high = self._range(values)
        levels = 1 << self.bits

        def fill(lo: int, hi: int, out: Symbols) -> None:
            _quantize(values, lo, hi, low, high, levels, key if self.random else None, out)

        return Quantized([("range", struct.pack("<ff", low, high))], levels, fill, _prior(low, high, levels))

    def _range(self, values: Floats) -> tuple[float, float]:
        low, high, _ = values.range
        fitted = None if self.loading == "minmax" else fit_values(values)
        if fitted is None:
            return low, high
        index = nearest_beta_index(fitted.dist.beta)
        factor = optimal_loading(index, self.bits) if isinstance(self.loading, str) else self.loading
        limit = float(np.float32(min(factor * fitted.dist.std, FLOAT_MAX)))
        return min(max(low, -limit), limit), min(max(high, -limit), limit)

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        data = src.section("range")
        if len(data) != 8:
            raise DecodeError(f"uniform: the range has {len(data)} bytes instead of 8")
        low, high = struct.unpack("<ff", data)
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise DecodeError(f"uniform: {low} to {high} is no range")
        levels = 1 << self.bits
        return Dequantizer(_table(low, high, levels), prior=_prior(low, high, levels))


def _table(low: float, high: float, levels: int) -> F32:
    """The value of each level; exact IEEE operations, the same on every machine."""
    return (low + (high - low) * (np.arange(levels) / (levels - 1))).astype(np.float32)


def _prior(low: float, high: float, levels: int) -> Geometric | None:
    """Gradients crowd around zero: the centre is the level nearest to it."""
    if not high > low:
        return geometric(levels, 0)
    return geometric(levels, min(levels - 1, max(0, int((levels - 1) * (0.0 - low) / (high - low) + 0.5))))


def _quantize(
    values: Floats, lo: int, hi: int, low: float, high: float, levels: int, key: int | None, out: Symbols
) -> None:
    span = high - low
    if span == 0:
        out.fill(0)
    elif _SAFE[0] < span < _SAFE[1]:
        scale, offset = _scale_and_offset(low, high, levels, key is not None)
        if key is None:
            values.quantize_uniform(lo, hi, scale, offset, levels, out)
        else:
            values.quantize_uniform_random(lo, hi, scale, offset, levels, key, out)
    else:  # rare: rescale in double first, so that float32 arithmetic is safe
        x = ((values.flat[lo:hi].astype(np.float64) - low) / span).astype(np.float32)
        scale, offset = _scale_and_offset(0.0, 1.0, levels, key is not None)
        if key is None:
            K.quantize_uniform(x, scale, offset, levels, out)
        else:
            K.quantize_uniform_random(x, scale, offset, levels, key, lo, out)


def _scale_and_offset(low: float, high: float, levels: int, is_random: bool) -> tuple[float, float]:
    span = high - low
    scale = float(np.float32((levels - 1) / span))
    return scale, float(np.float32(-low * (levels - 1) / span + (0.0 if is_random else 0.5)))
