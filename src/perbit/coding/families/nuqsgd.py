"""NUQSGD: stochastic rounding to exponentially spaced levels of a 2-norm (Ramezani-Kebrya et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer
from perbit.coding.families.priors import geometric
from perbit.coding.families.qsgd import bucket_scales, read_norms, write_norms
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized
from perbit.kernels import K
from perbit.kernels.api import F32, Symbols

MAX_LEVELS = 32


@register
@dataclass(frozen=True)
class Nuqsgd(Quantizer):
    """Unbiased: |x| becomes 0 or norm·2^-j, j < levels, the neighbour above or below drawn at random. bucket=0: one norm for all.

    Differs from the paper in counting: its s is the number of levels strictly between 0 and 1, here levels - 1.

    Args:
        levels: levels above 0.
        bucket: values that share a norm; 0: all of a tensor.
    """

    levels: int
    bucket: int = 512

    name = "nuqsgd"
    wire_id = 20
    examples = ("nuqsgd(4) | rans", "nuqsgd(1, bucket=7) | huffman", "nuqsgd(8, bucket=0) | rans")

    def __post_init__(self) -> None:
        if not isinstance(self.levels, int) or isinstance(self.levels, bool) or not 1 <= self.levels <= MAX_LEVELS:
            raise ValueError(f"levels must be 1 to {MAX_LEVELS}, got {self.levels}")
        if not isinstance(self.bucket, int) or isinstance(self.bucket, bool) or not 0 <= self.bucket < 1 << 32:
            raise ValueError(f"bucket must be 0 (the whole tensor) or a number of values, got {self.bucket}")

    @property
    def unbiased(self) -> bool:
        return True

    def omega(self, n: int) -> float:
        """1/8 between powers of two, and b·l²/4 or √b·l below the lowest level l for b values that share a norm."""
        b, lowest = min(n, self.bucket or n), 2.0 ** (1 - self.levels)
        return 1 / 8 + min(b * lowest**2 / 4, math.sqrt(b) * lowest)

    def quantize(self, values: Floats, key: int) -> Quantized:
        bucket, x, levels = self._bucket(values.n), values.flat, self._codebook()
        norms, side = write_norms(values.bucket_norms(bucket, "l2"))
        scales = bucket_scales(norms, 1)

        def fill(lo: int, hi: int, out: Symbols) -> None:
            first = lo // bucket
            ends = np.arange(first + 1, -(-hi // bucket) + 1) * bucket
            counts = np.diff(np.minimum(ends, hi), prepend=lo)
            unit = x[lo:hi] * np.repeat(scales[first : first + len(counts)], counts)
            K.quantize_codebook_random(unit, levels, key, lo, out)

        return Quantized([("norms", side)], len(levels), fill, geometric(len(levels), self.levels))

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        bucket, table = self._bucket(n), self._codebook()
        prior = geometric(len(table), self.levels)
        return Dequantizer(table, read_norms(src, n, bucket, self.name), bucket, prior)

    def _codebook(self) -> F32:
        positive = np.ldexp(np.float32(1), np.arange(1 - self.levels, 1))
        return np.concatenate([-positive[::-1], [0], positive]).astype(np.float32)

    def _bucket(self, n: int) -> int:
        return min(self.bucket, n) or max(1, n)
