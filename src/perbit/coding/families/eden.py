"""EDEN: a random rotation makes any tensor look normal, Lloyd-Max quantizes it, a scale makes it unbiased (Vargaftik et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Quantizer, Rest
from perbit.coding.cost import Cost
from perbit.coding.families.modelled import FLOAT_MAX, NORMAL, Modelled, midpoints, modelled
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Quantized, Shape, size
from perbit.errors import DecodeError
from perbit.gennorm import table_levels
from perbit.kernels import K
from perbit.kernels.api import F32, Symbols
from perbit.randomness import fold, random_signs

BLOCK = 1 << 13  # values rotated together: 32 KB, which stay in the first-level cache
SMALLEST = 64  # smaller blocks would not look normal
MAX_BITS = 8
_TURNS = 3  # of signs and Hadamard: one leaves a dominant value visible, two leave a lattice on which thresholds tie
_PIECE = 8  # blocks processed at a time: 256 KB, which stay in the second-level cache
_OMEGA = (0.570797, 0.133122, 0.0357841, 0.00959215, 0.00251096, 6.44655e-4, 1.63505e-4, 4.11868e-5)


@register
@dataclass(frozen=True)
class Eden(Quantizer):
    """2^bits levels for each rotated value, whatever the distribution of the input; the seed of the rotation travels.

    Blocks of 8192 values (the rest in smaller powers of two, padded by at most 1/16 or to 64) are rotated and scaled each
    for itself. The scale |x|²/⟨c, x⟩, c the quantized x, makes the part of the result along x exact; the rest has mean
    zero for a uniformly random rotation. Here a block is turned three times by random signs and Hadamard, which leaves a
    bias of the order of 1/block. Differs from the paper, whose single turn cannot hide one dominant value among small ones.

    Args:
        bits: bits of a level, 1 to 8.
    """

    bits: int

    name = "eden"
    wire_id = 24
    examples = ("eden(1)", "eden(2) | rans", "eden(4) | huffman")

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or not 1 <= self.bits <= MAX_BITS:
            raise ValueError(f"bits must be 1 to {MAX_BITS}, got {self.bits}")

    @property
    def unbiased(self) -> bool:
        return True

    def omega(self, n: int) -> float:
        """1/E[x·Q(x)] - 1 for the normal distribution, a little more where blocks are small."""
        return _OMEGA[self.bits - 1] * (1 + 2 / math.sqrt(min(max(n, SMALLEST), BLOCK)))

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        super().encode(Floats(_padded(values.flat)), rest, out, key)

    def quantize(self, values: Floats, key: int) -> Quantized:
        """Rotates the (padded) values in place: they are a copy."""
        seed = fold(key, 2) & 0xFFFFFFFF
        levels, prior = _design(self.bits)
        symbols = np.empty(values.n, np.uint8)
        scales = [
            _quantize_blocks(values.flat[lo:hi].reshape(-1, block), symbols[lo:hi], levels, seed)
            for lo, hi, block in _pieces(values.n)
        ]
        side = seed.to_bytes(4, "little") + np.concatenate([np.empty(0), *scales]).astype("<f4").tobytes()

        def fill(lo: int, hi: int, out: Symbols) -> None:
            out[:] = symbols[lo:hi]

        return Quantized([("rotation", side)], len(levels), fill, prior)

    def cost(self, shape: Shape) -> Cost:
        padded = padded_size(size(shape))
        return super().cost((padded,)) + Cost(0, 8 * _TURNS * padded)

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        n, padded = size(shape), padded_size(size(shape))
        blocks = [(hi - lo) // block for lo, hi, block in _pieces(padded)]
        rotation = src.section("rotation")
        if len(rotation) != 4 + 4 * sum(blocks):
            raise DecodeError(f"eden: {sum(blocks)} blocks need {4 + 4 * sum(blocks)} bytes, got {len(rotation)}")
        scales = np.frombuffer(rotation[4:], "<f4").astype(np.float32)
        if scales.size and not np.all(np.isfinite(scales)):
            raise DecodeError("eden: a scale is not finite")
        values = super().decode(src, (padded,), rest)
        first = 0
        for (lo, hi, block), count in zip(_pieces(padded), blocks, strict=True):
            _unrotate(
                values[lo:hi].reshape(-1, block), int.from_bytes(rotation[:4], "little"), scales[first : first + count]
            )
            first += count
        return values[:n].reshape(shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        FloatCodec.decode_add(self, src, shape, rest, out, weight)  # rotated values cannot be added chunk by chunk

    def dequantizer(self, src: Reader, n: int) -> Dequantizer:
        levels, prior = _design(self.bits)
        return Dequantizer(levels, prior=prior)


@lru_cache(maxsize=MAX_BITS)
def _design(bits: int) -> tuple[F32, Modelled]:
    levels = table_levels(NORMAL, 0, bits)
    return levels, modelled(NORMAL, midpoints(levels))


def padded_size(n: int) -> int:
    """n and the zeros that fill its last blocks: at most 1/16 of them, or up to 64 values.

    >>> padded_size(3), padded_size(1000), padded_size(1030), padded_size(10**6) - 10**6
    (64, 1024, 1088, 0)
    """
    tail = n % BLOCK
    granule = max(SMALLEST, 1 << max(0, (tail - 1).bit_length() - 5))
    return n - tail + -(-tail // granule) * granule


def _padded(x: F32) -> F32:
    out = np.zeros(padded_size(x.size), np.float32)
    out[: x.size] = x
    return out


def _pieces(padded: int) -> Iterator[tuple[int, int, int]]:
    """Ranges of whole blocks and the block length: pieces of full blocks, then the tail in falling powers of two."""
    full = padded - padded % BLOCK
    for lo in range(0, full, _PIECE * BLOCK):
        yield lo, min(full, lo + _PIECE * BLOCK), BLOCK
    block, lo = BLOCK, full
    while lo < padded:
        block >>= 1
        if lo + block <= padded:
            yield lo, lo + block, block
            lo += block


def _signs(seed: int, turn: int, block: int) -> F32:
    """A random sign for each place in a block."""
    return random_signs(seed ^ (turn << 32), block)


def _quantize_blocks(x: F32, symbols: Symbols, levels: F32, seed: int) -> F32:
    """Normalise and rotate the rows of x in place, write their symbols, return the factor that undoes it without bias."""
    block = x.shape[1]
    norms = np.minimum(K.bucket_norms(x.reshape(-1), block, "l2"), FLOAT_MAX).astype(np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        unit = (np.sqrt(block) / norms).astype(np.float32)  # every row to unit variance
    unit[~np.isfinite(unit)] = 0
    x *= unit[:, None]
    energy = np.einsum("ij,ij->i", x, x, dtype=np.float64)
    for turn in range(_TURNS):
        _turn(x, seed, turn)
    x *= _normalisation(block)
    K.quantize_codebook(x.reshape(-1), midpoints(levels), symbols)
    quantized = np.empty_like(x)
    K.dequantize(symbols, levels, quantized.reshape(-1))
    along = np.einsum("ij,ij->i", x, quantized, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scales = energy / along / unit
    return np.where(np.isfinite(scales) & (unit > 0), np.minimum(scales, FLOAT_MAX), 0).astype(np.float32)


def _normalisation(block: int) -> np.float32:
    """What makes all turns together a rotation; division and square root are exact IEEE operations."""
    return np.float32(1 / math.sqrt(block) ** _TURNS)


def _turn(x: F32, seed: int, turn: int) -> None:
    """Random signs, then Hadamard, row by row."""
    x *= _signs(seed, turn, x.shape[1])
    K.hadamard(x.reshape(-1), x.shape[1], x.reshape(-1))


def _unrotate(x: F32, seed: int, scales: F32) -> None:
    """The inverse rotation of every row, in float32 operations of one fixed order, times its scale."""
    block = x.shape[1]
    for turn in reversed(range(_TURNS)):
        K.hadamard(x.reshape(-1), block, x.reshape(-1))
        x *= _signs(seed, turn, block)
    x *= _normalisation(block)
    with np.errstate(over="ignore"):
        x *= scales[:, None]
    if np.abs(scales).max(initial=0) > 1e30:
        np.clip(x, -FLOAT_MAX, FLOAT_MAX, out=x)
