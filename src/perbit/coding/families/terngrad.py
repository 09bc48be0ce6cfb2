"""TernGrad: every value becomes -s, 0 or s, s the largest magnitude of the tensor (Wen et al., 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer
from perbit.coding.families.priors import geometric
from perbit.coding.families.qsgd import bucket_scales
from perbit.coding.families.sign import read_scale, write_scale
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized
from perbit.kernels import K
from perbit.kernels.api import Symbols


@register
@dataclass(frozen=True)
class Terngrad(Quantizer):
    """x becomes sign(x)·s with probability |x|/s, else 0: unbiased. clip=c first clips at c standard deviations (the paper: 2.5),
    which biases the largest values but bounds the error.

    The standard deviation is taken around zero.

    Args:
        clip: clip at so many standard deviations first; without it not at all.
    """

    clip: float | None = None

    name = "terngrad"
    wire_id = 22
    examples = ("terngrad | rans", "terngrad(clip=2.5) | rans")

    def __post_init__(self) -> None:
        if self.clip is None:
            return
        if isinstance(self.clip, bool) or not 0 < self.clip < 1e30:
            raise ValueError(f"clip must be none or a positive number of standard deviations, got {self.clip}")
        object.__setattr__(self, "clip", float(self.clip))

    @property
    def unbiased(self) -> bool:
        return self.clip is None

    def omega(self, n: int) -> float:
        """√n - 1: the variance of a value is |x|(s - |x|), and s ≤ |x|₂. With clipping s ≤ c|x|₂/√n: 1 + c at most."""
        return 1 + self.clip if self.clip is not None else math.sqrt(max(1, n)) - 1

    def quantize(self, values: Floats, key: int) -> Quantized:
        _, _, sum_sq, largest, _ = values.moments
        if self.clip is not None:
            largest = min(largest, self.clip * math.sqrt(sum_sq / max(1, values.n)))
        side, scale = write_scale(largest)
        x, scales = values.flat, bucket_scales(np.array([scale], np.float32), 1)

        def fill(lo: int, hi: int, out: Symbols) -> None:
            K.quantize_levels_random(x[lo:hi], scales, max(1, values.n), 1, key, lo, out)

        return Quantized([("scale", side)], 3, fill, geometric(3, 1))

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        scale = read_scale(src, self.name)
        return Dequantizer(np.array([-scale, 0, scale], np.float32), prior=geometric(3, 1))
