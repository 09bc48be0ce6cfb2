"""Lloyd quantizers of a fitted GenNorm: `mwl2` weighs errors by |x|^m (Salehkalaibar and Rini, 2022), `lloyd` does not (m = 0)."""

from __future__ import annotations

import struct
from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer
from perbit.coding.families.modelled import (
    Modelled,
    check_beta,
    check_shape,
    held_fit,
    midpoints,
    modelled,
    positive,
    scaled_table,
    shape_and_sigma,
)
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized
from perbit.errors import DecodeError
from perbit.gennorm import BETAS, design, nearest_beta_index, table_levels
from perbit.gennorm.tables import MAX_BITS, MAX_M
from perbit.kernels.api import F32, Symbols

_HEAD = struct.Struct("<fB")  # sigma, shape index
_ADAPTIVE = "adaptive"
_ON_GRID = 1e-5  # a shape this near to one of the grid has its levels


class _Lloyd(Quantizer):
    """2^bits levels for the fitted standard deviation and, if beta is "adaptive", the fitted shape."""

    bits: int
    beta: str | float
    std: float | None
    works_afar = True

    @abstractmethod
    def _weight(self) -> float:
        """The m of the weight |x|^m."""

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or not 1 <= self.bits <= MAX_BITS:
            raise ValueError(f"bits must be 1 to {MAX_BITS}, got {self.bits}")
        if self.std is not None:
            object.__setattr__(self, "std", positive("std", self.std))
        if self.beta == _ADAPTIVE:
            return
        if isinstance(self.beta, str | bool):
            raise ValueError(f'beta must be "adaptive" or a number, got {self.beta!r}')
        object.__setattr__(self, "beta", check_beta(self.beta))

    def quantize(self, values: Floats, key: int) -> Quantized:
        index, sigma = self._fit(values)
        levels, sent = self._levels(index)
        thresholds = scaled_table(midpoints(levels), sigma)

        def fill(lo: int, hi: int, out: Symbols) -> None:
            values.quantize_codebook(lo, hi, thresholds, out)

        return Quantized([("fit", _HEAD.pack(sigma, index) + sent)], len(levels), fill, self._prior(index, levels))

    def _fit(self, values: Floats) -> tuple[int, float]:
        """Shape index and standard deviation, each fitted to these values unless it is given."""
        if isinstance(self.beta, float) and self.std is not None:
            return nearest_beta_index(self.beta), float(np.float32(self.std))
        index, sigma = shape_and_sigma(values)
        index = nearest_beta_index(self.beta) if isinstance(self.beta, float) else index
        return index, sigma if self.std is None else float(np.float32(self.std))

    def _levels(self, index: int) -> tuple[F32, bytes]:
        """The levels at unit variance, and those that must travel: none if the shipped table has them."""
        m, beta = self._weight(), float(BETAS[index]) if isinstance(self.beta, str) else self.beta
        if m == int(m) and abs(beta - BETAS[index]) < _ON_GRID:
            return table_levels(index, int(m), self.bits), b""
        half = design(beta, m, self.bits)[1 << (self.bits - 1) :].astype("<f4")
        return _symmetric(half.astype(np.float32)), half.tobytes()

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        data = bytes(src.section("fit"))
        half = 1 << (self.bits - 1)
        if len(data) not in (_HEAD.size, _HEAD.size + 4 * half):
            raise DecodeError(f"{self.name}: {len(data)} bytes are neither a fit nor a fit with {half} levels")
        sigma, index = _HEAD.unpack_from(data)
        if not (np.isfinite(sigma) and sigma >= 0):
            raise DecodeError(f"{self.name}: {sigma} is no standard deviation")
        check_shape(index, self.name)
        levels = _read_levels(self, index, data[_HEAD.size :])
        return Dequantizer(scaled_table(levels, sigma), prior=self._prior(index, levels))

    def _prior(self, index: int, levels: F32) -> Modelled:
        # No frequency is below one: in a table of 14 bits many levels far out in the tail would cost up to 2 %.
        return modelled(index, midpoints(levels), 16 if self._weight() > 1 and self.bits >= 5 else 14)


@register
@dataclass(frozen=True)
class Mwl2(_Lloyd):
    """The 2^bits levels with the least |x|^m-weighted squared error: a larger m spends them on larger values.

    beta: "adaptive" (fitted to every tensor) or a number. std: fitted to every tensor unless given. With both given nothing follows the
    tensor any more: the paper's non-adaptive variant, frozen after a boot-up phase (`perbit.hold` sets them).
    Levels for whole m and shapes on the shipped grid cost nothing; others travel, four bytes for each positive one. The standard
    deviation is that of the non-zero values around zero.

    There is no level at zero, as in the paper, which quantizes what topK has kept: exact zeros come back as the smallest
    positive level. Put `topk` or `threshold` in front where zeros matter. Differs from the paper: m = 0 is Lloyd-Max, not uniform.

    Args:
        bits: bits of a level.
        m: the exponent of the weight; 0 weighs all errors alike.
        beta: the shape of the GenNorm: "adaptive" fits it to every tensor; or a number.
        std: the standard deviation of a fit that is held; fitted to every tensor by default.
    """

    bits: int
    m: float
    beta: str | float = _ADAPTIVE
    std: float | None = None

    name = "mwl2"
    wire_id = 18
    examples = (
        "mwl2(2, 2) | rans",
        "mwl2(6, 4) | rans",
        "mwl2(3, 4, beta=0.7) | huffman",
        "topk(0.2) | mwl2(3, 1.5) | rans",
        "mwl2(1, 8)",
        "topk(0.2) | mwl2(2, 2, beta=0.9, std=0.05)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.m, bool) or not 0 <= self.m <= MAX_M:
            raise ValueError(f"m must be 0 to {MAX_M}, got {self.m}")

    def held(self, values: Floats) -> Mwl2:
        found = held_fit(values)
        return self if found is None else replace(self, beta=found[0], std=found[1])

    def _weight(self) -> float:
        return self.m


@register
@dataclass(frozen=True)
class Lloyd(_Lloyd):
    """Lloyd-Max: the 2^bits levels with the least squared error for the fitted GenNorm; otherwise like mwl2 with m = 0.

    Args:
        bits: bits of a level.
        beta: the shape of the GenNorm: "adaptive" fits it to every tensor; or a number.
        std: the standard deviation of a fit that is held; fitted to every tensor by default.
    """

    bits: int
    beta: str | float = _ADAPTIVE
    std: float | None = None

    name = "lloyd"
    wire_id = 19
    examples = ("lloyd(2) | rans", "lloyd(4, beta=2) | huffman", "lloyd(8)")

    def held(self, values: Floats) -> Lloyd:
        found = held_fit(values)
        return self if found is None else replace(self, beta=found[0], std=found[1])

    def _weight(self) -> float:
        return 0


def _symmetric(half: F32) -> F32:
    return np.concatenate([-half[::-1], half])


def _read_levels(codec: _Lloyd, index: int, sent: bytes) -> F32:
    m = codec._weight()
    if not sent:
        if m != int(m):
            raise DecodeError(f"{codec.name}: the levels are missing, and none are shipped for m={m}")
        return table_levels(index, int(m), codec.bits)
    half = np.frombuffer(sent, "<f4").astype(np.float32)
    if not (np.isfinite(half).all() and half[0] > 0 and (np.diff(half) > 0).all()):
        raise DecodeError(f"{codec.name}: the levels are not ascending positive numbers")
    return _symmetric(half)
