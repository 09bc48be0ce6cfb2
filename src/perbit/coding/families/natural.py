"""Natural compression: every value becomes a power of two, the one above or below drawn at random (Horváth et al., 2022)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import F32, U64, Symbols

_RANGE = struct.Struct("<hh")  # lowest and highest power of two
_LOWEST, _HIGHEST = -149, 127  # powers of two that float32 holds
_SMALLEST_NORMAL = -126
_BINS = 2048  # of the histogram of magnitudes: 8 to a power of two
_LIFT = 64  # binary places by which tensors of tiny values are lifted while they are rounded


@register
@dataclass(frozen=True)
class Natural(Quantizer):
    """Unbiased, ω = 1/8: ±2^e or 0, with the tensor's own range of exponents as the alphabet.

    Differs from the paper, which sends sign and 8-bit exponent: only exponents between the smallest and the largest
    magnitude have symbols. Magnitudes above 2^127 become 2^127, as float32 has no larger power of two.
    """

    name = "natural"
    wire_id = 21
    examples = ("natural | rans", "natural", "topk(0.1) | natural | huffman")

    @property
    def unbiased(self) -> bool:
        return True

    def omega(self, n: int) -> float:
        """1/8: (2l - r)(r - l) ≤ r²/8 for every r between l and 2l."""
        return 1 / 8

    def quantize(self, values: Floats, key: int) -> Quantized:
        x = values.flat
        low, high = _exponents(x)
        lift = _LIFT if low < _SMALLEST_NORMAL else 0
        codebook = np.ldexp(_codebook(low, high), lift)

        def fill(lo: int, hi: int, out: Symbols) -> None:
            chunk = x[lo:hi] if not lift else np.ldexp(x[lo:hi], lift)
            K.quantize_codebook_random(chunk, codebook, key, lo, out)

        return Quantized([("range", _RANGE.pack(low, high))], len(codebook), fill)

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        data = src.section("range")
        if len(data) != _RANGE.size:
            raise DecodeError(f"natural: the range has {len(data)} bytes instead of {_RANGE.size}")
        low, high = _RANGE.unpack(data)
        if not _LOWEST <= low <= high <= _HIGHEST:
            raise DecodeError(f"natural: 2^{low} to 2^{high} is no range")
        return Dequantizer(_codebook(low, high))


def _codebook(low: int, high: int) -> F32:
    """Minus powers of two, zero, powers of two.

    >>> _codebook(-1, 1)
    array([-2. , -1. , -0.5,  0. ,  0.5,  1. ,  2. ], dtype=float32)
    """
    positive = np.ldexp(np.float32(1), np.arange(low, high + 1))
    return np.concatenate([-positive[::-1], [0], positive]).astype(np.float32)


def _exponents(x: F32) -> tuple[int, int]:
    """The powers of two that enclose all magnitudes but zero.

    Lifting keeps tiny values apart from underflow only if the large ones leave room: tensors that reach up to 1 end at
    2^-126, and what is smaller becomes that or 0, still unbiased.
    """
    hist: U64 = np.zeros(_BINS, np.uint64)
    *_, largest, n_zero = K.moments(x, hist)
    if n_zero == x.size:
        return 0, 0
    mantissa, exponent = np.frexp(largest)  # largest = mantissa·2^exponent, mantissa in [1/2, 1)
    high = min(int(exponent) - (1 if mantissa == 0.5 else 0), _HIGHEST)
    has_subnormal = int(hist[:8].sum()) > n_zero
    low = _LOWEST if has_subnormal else int(np.flatnonzero(hist[8:])[0]) // 8 + _SMALLEST_NORMAL
    return (low if high < 0 else max(low, _SMALLEST_NORMAL)), high
