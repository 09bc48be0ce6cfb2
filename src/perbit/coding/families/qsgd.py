"""QSGD: stochastic rounding to s levels of a norm, per bucket (Alistarh et al., 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer
from perbit.coding.families.priors import geometric
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized
from perbit.errors import DecodeError
from perbit.kernels.api import F32, Symbols

MAX_LEVELS = 2047  # 2·levels + 1 symbols; the entropy coders' alphabets end at 4096
_FLOAT_MAX = np.finfo(np.float32).max
_SURE = np.float32(1e-30)  # whatever is larger divides any number of levels to a float32


@register
@dataclass(frozen=True)
class Qsgd(Quantizer):
    """Unbiased: |x| becomes a multiple of norm/levels, rounded up or down at random. bucket=0: one norm for the whole tensor.

    Args:
        levels: levels above 0: 1 sends -1, 0 and 1 times the norm; 2^b - 1 is about b + 1 bits before entropy coding.
        bucket: values that share a norm; 0: all of a tensor. Smaller ones are more exact and cost more norms.
        norm: "l2", or "max": the largest magnitude.
    """

    levels: int
    bucket: int = 512
    norm: str = "l2"

    name = "qsgd"
    wire_id = 8
    works_afar = True
    examples = (
        "qsgd(1) | rans",
        'qsgd(15, bucket=64, norm="max") | huffman',
        "qsgd(127, bucket=0) | rans",
        "qsgd(2047)",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.levels, int) or isinstance(self.levels, bool) or not 1 <= self.levels <= MAX_LEVELS:
            raise ValueError(f"levels must be 1 to {MAX_LEVELS}, got {self.levels}")
        if not isinstance(self.bucket, int) or isinstance(self.bucket, bool) or not 0 <= self.bucket < 1 << 32:
            raise ValueError(f"bucket must be 0 (the whole tensor) or a number of values, got {self.bucket}")
        if self.norm not in ("l2", "max"):
            raise ValueError(f'norm must be "l2" or "max", got {self.norm!r}')

    @property
    def unbiased(self) -> bool:
        return True

    def omega(self, n: int) -> float:
        """min(b/s², √b/s) for the 2-norm, b/(4s²) for the maximum; b values share a norm."""
        b, s = min(n, self.bucket or n), self.levels
        return min(b / s**2, math.sqrt(b) / s) if self.norm == "l2" else b / (4 * s**2)

    def quantize(self, values: Floats, key: int) -> Quantized:
        bucket = self._bucket(values.n)
        norms, side = write_norms(values.bucket_norms(bucket, self.norm))
        scales = bucket_scales(norms, self.levels)

        def fill(lo: int, hi: int, out: Symbols) -> None:
            values.quantize_levels_random(lo, hi, scales, bucket, self.levels, key, out)

        alphabet = 2 * self.levels + 1
        return Quantized([("norms", side)], alphabet, fill, geometric(alphabet, self.levels))

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        bucket = self._bucket(n)
        norms = read_norms(src, n, bucket, self.name)
        s = self.levels
        table = (np.arange(-s, s + 1) / s).astype(np.float32)
        prior = geometric(2 * s + 1, s)
        if norms.size == 1:  # one norm: fold it into the table and decode in one step
            return Dequantizer(table * norms[0], prior=prior)
        return Dequantizer(table, norms, bucket, prior)

    def _bucket(self, n: int) -> int:
        return min(self.bucket, n) or max(1, n)


def write_norms(found: F32) -> tuple[F32, bytes]:
    """The norm of every bucket, at most as large as a float32 may be, and as bytes."""
    norms = np.minimum(found, _FLOAT_MAX)
    return norms, norms.astype("<f4").tobytes()


def read_norms(src: Reader, n: int, bucket: int, codec: str) -> F32:
    """The norms of a frame: as many as buckets, finite, not negative."""
    data, count = src.section("norms"), -(-n // bucket)
    if len(data) != 4 * count:
        raise DecodeError(f"{codec}: {count} norms need {4 * count} bytes, got {len(data)}")
    norms = np.frombuffer(data, "<f4").astype(np.float32)
    if count and not np.all(np.isfinite(norms) & (norms >= 0)):
        raise DecodeError(f"{codec}: a norm is negative or not finite")
    return norms


def bucket_scales(norms: F32, levels: int) -> F32:
    """levels/norm; 0 for a norm so small that the quotient is no float32 (such values decode to zero)."""
    if norms.size == 1 and norms[0] > _SURE:
        return np.float32(levels) / norms
    with np.errstate(divide="ignore", over="ignore"):
        scales = np.float32(levels) / norms
    scales[~np.isfinite(scales)] = 0
    return scales
