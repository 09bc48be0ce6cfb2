"""Sparsifiers: keep some values, send where they were, hand them to the next stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perbit.bits import Reader, Writer
from perbit.codec import Codec, FloatCodec, Floats, PositionCodec, Rest, Shape, size
from perbit.errors import DecodeError, EncodeError
from perbit.families.positions import Golomb
from perbit.kernels import K
from perbit.kernels.api import F32, U32
from perbit.parallel import chunks
from perbit.randomness import fold, splitmix64
from perbit.registry import register

MAX_SPARSE = 1 << 32  # positions are 32-bit numbers


def kept(n: int, ratio: float | None, k: int | None) -> int:
    """How many of n values to keep: k, or the ratio of them, at least one."""
    if n == 0:
        return 0
    return min(n, k) if k is not None else max(1, round((ratio or 0) * n))


def check_amount(codec: Codec, ratio: Any, k: Any) -> None:
    """A sparsifier keeps a ratio or a count. `topk(100)` means a count."""
    if isinstance(ratio, int) and not isinstance(ratio, bool) and k is None:
        object.__setattr__(codec, "k", ratio)
        object.__setattr__(codec, "ratio", None)
        ratio, k = None, ratio
    if (ratio is None) == (k is None):
        raise ValueError(f"give a ratio or k, e.g. {codec.name}(0.01) or {codec.name}(k=100)")
    if ratio is not None and not (isinstance(ratio, float) and 0 < ratio <= 1):
        raise ValueError(f"ratio must be above 0 and at most 1, got {ratio}")
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise ValueError(f"k must be a whole number of at least 1, got {k}")


def check_size(n: int) -> None:
    if n > MAX_SPARSE:
        raise EncodeError(f"sparse codecs hold at most 2^32 values, got {n}; split the tensor")


def encode_sparse(values: Floats, positions: U32, coder: PositionCodec, rest: Rest, out: Writer, key: int) -> None:
    """Count, positions, then the values at these positions."""
    out.varint(positions.size)
    out.section(coder.encode(positions, values.n))
    rest.encode_floats(Floats(values.flat[positions]), out, key)


def decode_sparse(src: Reader, n: int, coder: PositionCodec, rest: Rest) -> tuple[U32, F32]:
    count = src.varint("number of kept values", n)
    positions = coder.decode(src.section("positions"), n, count)
    return positions, rest.decode_floats(src, (count,))


def densify(positions: U32, values: F32, shape: Shape) -> F32:
    out = np.zeros(size(shape), np.float32)
    out[positions] = values
    return out.reshape(shape)


@register
@dataclass(frozen=True)
class TopK(FloatCodec):
    """The k largest magnitudes, exactly; ties go to the lowest position."""

    ratio: float | None = None
    k: int | None = None
    positions: PositionCodec = Golomb()

    name = "topk"
    wire_id = 4
    examples = ("topk(0.05) | fp16", "topk(k=3)", "topk(0.1) | qsgd(15) | rans")
    gives = "floats"

    def __post_init__(self) -> None:
        check_amount(self, self.ratio, self.k)
        check_positions(self.positions)

    def omega(self, n: int) -> float:
        return 1 - self.passes_on(n) / max(1, n)

    def growth(self, n: int) -> float:
        return 1.0

    def passes_on(self, n: int) -> int:
        return kept(n, self.ratio, self.k)

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        check_size(values.n)
        encode_sparse(values, K.top_k(values.flat, self.passes_on(values.n)), self.positions, rest, out, key)

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        return densify(*decode_sparse(src, size(shape), self.positions, rest), shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        K.scatter_add(out, *decode_sparse(src, size(shape), self.positions, rest), weight)


@register
@dataclass(frozen=True)
class Threshold(FloatCodec):
    """All values with a magnitude of at least `level`."""

    level: float
    positions: PositionCodec = Golomb()

    name = "threshold"
    wire_id = 6
    examples = ("threshold(0.5)", "threshold(0.01) | uniform(4) | huffman")
    gives = "floats"

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", float(self.level))
        if not 0 <= self.level < float("inf"):
            raise ValueError(f"level must be a number of at least 0, got {self.level}")
        check_positions(self.positions)

    def omega(self, n: int) -> float:
        return 1.0

    def growth(self, n: int) -> float:
        return 1.0

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        check_size(values.n)
        encode_sparse(values, K.select_above(values.flat, self.level), self.positions, rest, out, key)

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        return densify(*decode_sparse(src, size(shape), self.positions, rest), shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        K.scatter_add(out, *decode_sparse(src, size(shape), self.positions, rest), weight)


@register
@dataclass(frozen=True)
class RandK(FloatCodec):
    """k random positions without replacement; only a 4-byte seed travels. Scaled by n/k so that the mean is right."""

    ratio: float | None = None
    k: int | None = None
    scaled: bool = True

    name = "randk"
    wire_id = 5
    examples = ("randk(0.1)", "randk(k=5, scaled=false) | fp16", "randk(0.25) | qsgd(3) | rans")
    gives = "floats"

    def __post_init__(self) -> None:
        check_amount(self, self.ratio, self.k)
        if not isinstance(self.scaled, bool):
            raise ValueError(f"scaled must be true or false, got {self.scaled}")

    @property
    def unbiased(self) -> bool:
        return self.scaled

    def omega(self, n: int) -> float:
        if n == 0:
            return 0.0
        return n / self.passes_on(n) - 1 if self.scaled else 1 - self.passes_on(n) / n

    def growth(self, n: int) -> float:
        return 1 + self.omega(n) if self.scaled else 1.0

    def passes_on(self, n: int) -> int:
        return kept(n, self.ratio, self.k)

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        check_size(values.n)
        seed = fold(key, 2) & 0xFFFFFFFF
        k = self.passes_on(values.n)
        chosen = values.flat[random_positions(values.n, k, seed)]
        if self.scaled and k:
            with np.errstate(over="ignore"):
                chosen = np.clip(chosen * np.float32(values.n / k), -FLOAT_MAX, FLOAT_MAX)
        out.section(seed.to_bytes(4, "little"))
        rest.encode_floats(Floats(chosen), out, key)

    def _decode(self, src: Reader, shape: Shape, rest: Rest) -> tuple[U32, F32]:
        seed = src.section("seed")
        if len(seed) != 4:
            raise DecodeError(f"randk: the seed has {len(seed)} bytes instead of 4")
        n = size(shape)
        if n > MAX_SPARSE:
            raise DecodeError(f"randk: positions are 32-bit, the frame claims {n} values")
        k = self.passes_on(n)
        values = rest.decode_floats(src, (k,))  # first: it fails on short frames before any positions are drawn
        return random_positions(n, k, int.from_bytes(seed, "little")), values

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        return densify(*self._decode(src, shape, rest), shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        K.scatter_add(out, *self._decode(src, shape, rest), weight)


FLOAT_MAX = np.finfo(np.float32).max
_ROUNDS = 6


def random_positions(n: int, k: int, seed: int) -> U32:
    """The first k entries of a keyed pseudo-random permutation of 0..n-1, ascending. Integer arithmetic only: both ends agree.

    A balanced Feistel network permutes the next power of four; values that fall outside are permuted again until they do not.

    >>> random_positions(10, 10, seed=1).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = max(1, ((max(2, n) - 1).bit_length() + 1) // 2)
    keys = [splitmix64(seed ^ (round_ << 32)) & 0xFFFFFFFF for round_ in range(_ROUNDS)]
    out = np.arange(k, dtype=np.uint32)
    for lo, hi in chunks(k):  # so that the network's many temporary arrays stay small
        part = _feistel(out[lo:hi], half, keys)
        while (outside := np.flatnonzero(part >= n)).size:
            part[outside] = _feistel(part[outside], half, keys)
        out[lo:hi] = part
    out.sort()
    return out


def _feistel(x: U32, half: int, keys: list[int]) -> U32:
    mask = np.uint32((1 << half) - 1)
    left, right = x >> np.uint32(half), x & mask
    for key in keys:
        left, right = right, left ^ (_hash32(right ^ np.uint32(key)) & mask)
    return (left << np.uint32(half)) | right


def _hash32(x: U32) -> U32:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def check_positions(coder: object) -> None:
    if not isinstance(coder, PositionCodec):
        raise ValueError(f"positions must be a position coder such as golomb or bitmap, got {coder}")
