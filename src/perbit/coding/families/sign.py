"""One bit a value: its sign, times the mean magnitude of the tensor (Seide et al., 2014; Karimireddy et al., 2019)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized
from perbit.errors import DecodeError
from perbit.kernels.api import Symbols

_FLOAT_MAX = float(np.finfo(np.float32).max)
_ZERO = np.zeros(1, np.float32)


@register
@dataclass(frozen=True)
class Sign(Quantizer):
    """sign(x) · mean|x|, zero counting as positive. Biased, a contraction: use it with error feedback.

    Differs from Seide et al., who reconstruct to one mean for each sign and column.
    """

    name = "sign"
    wire_id = 23
    works_afar = True
    examples = ("sign", "sign | rans", "topk(0.1) | sign")

    def omega(self, n: int) -> float:
        """1 - |x|₁²/(n|x|₂²), at most 1 - 1/n."""
        return 1 - 1 / max(1, n)

    def growth(self, n: int) -> float:
        """|C(x)|² = |x|₁²/n ≤ |x|²."""
        return 1.0

    def quantize(self, values: Floats, key: int) -> Quantized:
        def fill(lo: int, hi: int, out: Symbols) -> None:
            values.quantize_codebook(lo, hi, _ZERO, out)

        side, _ = write_scale(values.moments[1] / max(1, values.n))
        return Quantized([("scale", side)], 2, fill)

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        scale = read_scale(src, self.name)
        return Dequantizer(np.array([-scale, scale], np.float32))


def write_scale(scale: float) -> tuple[bytes, float]:
    """A scale as the four bytes of a float32, and what they hold."""
    data = struct.pack("<f", min(scale, _FLOAT_MAX))
    return data, float(struct.unpack("<f", data)[0])


def read_scale(src: Reader, codec: str) -> float:
    """A scale from a frame: finite, not negative."""
    data = src.section("scale")
    if len(data) != 4:
        raise DecodeError(f"{codec}: the scale has {len(data)} bytes instead of 4")
    scale = float(struct.unpack("<f", data)[0])
    if not 0 <= scale <= _FLOAT_MAX:
        raise DecodeError(f"{codec}: {scale} is no scale")
    return scale
