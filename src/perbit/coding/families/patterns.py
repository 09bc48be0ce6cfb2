"""A fraction of a bit a value: each block of values becomes the sign pattern that it agrees with most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit import parallel
from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.families.modelled import FLOAT_MAX
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.randomness import fold, random_signs

LENGTHS = (8, 16, 32, 64, 128, 256)
MAX_BITS = 16
GROUP = 2048  # values with one scale
ZERO = 255  # the code of a scale of 0; code c < 255 is the largest scale times 2^(-c/8)
_TOO_LARGE = 1e34  # sums of 256 values far above it overflow: they are made smaller first
_SHRINK = np.float32(2**-12)


@register
@dataclass(frozen=True)
class Patterns(FloatCodec):
    """Vector quantization: a block of `length` values is sent as one of 2^bits patterns of signs, a group of 2048 values as its scale.

    The patterns are the rows of the Hadamard matrix, turned by as many random draws of signs as `bits` allows, new ones in every frame.
    It catches as much of flat values as of normal ones, less of heavy tails; what it misses looks random to the next frame's patterns.

    Args:
        length: values in a block: 8, 16, 32, 64, 128 or 256.
        bits: bits that a block takes.
    """

    length: int = 32
    bits: int = 9

    name = "patterns"
    wire_id = 55
    examples = ("patterns", "patterns(8, 8)", "patterns(64, 10)", "patterns(256, 9)")
    gives = "coded"

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length not in LENGTHS:
            raise ValueError(f"length must be one of {', '.join(map(str, LENGTHS))}, got {self.length!r}")
        fewest, most = self.length.bit_length(), min(MAX_BITS, self.length)
        if type(self.bits) is not int or not fewest <= self.bits <= most:
            raise ValueError(f"bits must be {fewest} to {most} for patterns of {self.length}, got {self.bits!r}")

    def omega(self, n: int) -> float:
        """A block's largest coefficient holds 1/length of its energy or more, and the worst group has all of it in one block."""
        return 1 - 0.99 / min(GROUP, max(1, n))

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        seed = fold(key, 1) & 0xFFFFFFFF
        signs = random_signs(seed, 1 << self.bits - 1)
        symbols = np.empty(self._blocks(values.n), np.uint16)
        agreement = np.empty(symbols.size, np.float32)
        low, high, _ = values.range
        shrink = max(-low, high) > _TOO_LARGE

        def work(piece: tuple[int, int]) -> None:
            x = self._whole_blocks(values.flat[slice(*piece)])
            blocks = slice(piece[0] // self.length, piece[0] // self.length + x.size // self.length)
            K.match_patterns(x * _SHRINK if shrink else x, self.length, signs, symbols[blocks], agreement[blocks])

        for _ in parallel.run(work, parallel.chunks(values.n)):
            pass
        largest, codes = _code_scales(self._scales(agreement, values.n) / (float(_SHRINK) if shrink else 1.0))
        out.section(seed.to_bytes(4, "little"), largest.astype("<f4").tobytes(), codes.tobytes())
        out.section(K.pack(symbols, self.bits))

    def cost(self, shape: Shape) -> Cost:
        n = self._blocks(size(shape)) * self.length
        return Cost(16 * n + (1 << 20), 16 * n + (1 << self.bits + 2))

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        n = size(shape)
        n_blocks = self._blocks(n)
        seed, scales = _read_scales(src.section("scales"), -(-n_blocks // self._group))
        symbols = np.empty(n_blocks, np.uint16)
        K.unpack(src.section("patterns"), self.bits, symbols)
        pattern = symbols >> 1
        scale = np.repeat(scales, self._group)[:n_blocks]
        out = np.zeros((n_blocks, self.length), np.float32)
        out[np.arange(n_blocks), pattern % self.length] = np.where(symbols & 1, -scale, scale)
        K.hadamard(out.reshape(-1), self.length, out.reshape(-1))
        out *= random_signs(seed, 1 << self.bits - 1).reshape(-1, self.length)[pattern // self.length]
        return out.reshape(-1)[:n].reshape(shape)

    @property
    def _group(self) -> int:
        """Blocks with one scale."""
        return GROUP // self.length

    def _blocks(self, n: int) -> int:
        return -(-n // self.length)

    def _whole_blocks(self, x: F32) -> F32:
        missing = -x.size % self.length
        return np.concatenate([x, np.zeros(missing, np.float32)]) if missing else x

    def _scales(self, agreement: F32, n: int) -> NDArray[np.float64]:
        """What each value of a group means: the agreement of its blocks, per value. Added in order, on any machine."""
        rows = np.zeros((-(-agreement.size // self._group), self._group))
        rows.reshape(-1)[: agreement.size] = agreement
        values = np.minimum(GROUP, n - GROUP * np.arange(len(rows)))
        means: NDArray[np.float64] = np.add.accumulate(rows, axis=1)[:, -1] / values
        return means


def _code_scales(scales: NDArray[np.float64]) -> tuple[np.float32, NDArray[np.uint8]]:
    """The largest scale and a byte for each: the nearest power of 2^(1/8) below it."""
    largest = np.float32(min(scales.max(initial=0.0), FLOAT_MAX))
    if largest == 0:
        return largest, np.full(scales.size, ZERO, np.uint8)
    between = float(largest) * (_POWERS[1:] + _POWERS[:-1]) / 2
    codes = between.size - np.searchsorted(between[::-1], scales)
    return largest, codes.astype(np.uint8)


def _read_scales(side: memoryview, n_groups: int) -> tuple[int, F32]:
    if len(side) != 8 + n_groups:
        raise DecodeError(f"patterns: {n_groups} groups need {8 + n_groups} bytes, got {len(side)}")
    largest = np.frombuffer(side[4:8], "<f4")[0]
    if not (np.isfinite(largest) and largest >= 0):
        raise DecodeError("patterns: the largest scale is negative or not finite")
    codes = np.frombuffer(side[8:], np.uint8)
    return int.from_bytes(side[:4], "little"), (float(largest) * _POWERS).astype(np.float32)[codes]


def _powers() -> NDArray[np.float64]:
    """2^(-c/8) for c = 0…254, then 0: by square roots and products alone, which are the same on every machine."""
    eighth = np.sqrt(np.sqrt(np.sqrt(np.float64(0.5))))
    steps = np.multiply.accumulate(np.array([1.0, *[eighth] * 7]))
    halves = np.ldexp(1.0, -np.arange(32))
    powers: NDArray[np.float64] = np.outer(halves, steps).reshape(-1)
    powers[ZERO] = 0
    return powers


_POWERS = _powers()
