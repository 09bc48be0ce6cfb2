"""3LC (Lim, Andersen, Kaminsky, 2019): three values, five to a byte, runs of zeros shortened. Error feedback is the channel's, not the codec's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.families.fitpoly import FLOAT_MAX, read_scale
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size
from perbit.errors import DecodeError
from perbit.kernels.api import F32

U8 = NDArray[np.uint8]

DIGITS = 5  # ternary digits in a byte: 3⁵ = 243 ≤ 256
ZEROS = 121  # five zeros
FIRST_RUN, LONGEST_RUN = 243, 14  # bytes 243…255 stand for 2…14 bytes of zeros
_PLACES = 3 ** np.arange(DIGITS - 1, -1, -1)


@register
@dataclass(frozen=True)
class ThreeLC(FloatCodec):
    """Ternary: each value rounded to a multiple of M = sparsity · max|x|; a larger sparsity (below 2) gives more zeros.

    Args:
        sparsity: 1 up to, not including, 2: larger gives more zeros.
    """

    sparsity: float = 1.0

    name = "threelc"
    wire_id = 54
    examples = ("threelc", "threelc(1.75)")
    gives = "coded"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", float(self.sparsity))
        if not 1 <= self.sparsity < 2:
            raise ValueError(f"sparsity must be at least 1 and below 2, got {self.sparsity}")

    def omega(self, n: int) -> float:
        return 1.0  # a value at most M/2 becomes 0, one above it moves by less than itself

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        low, high, _ = values.range if values.n else (0.0, 0.0, 0)
        scale = np.float32(min(max(-low, high) * self.sparsity, FLOAT_MAX))
        out.section(scale.astype("<f4").tobytes())
        out.section(shorten_runs(pack_ternary(values.flat, float(scale) / 2)).tobytes())

    def cost(self, shape: Shape) -> Cost:
        return Cost(16 * size(shape), 16 * size(shape))

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        scale = np.float32(read_scale(src))
        n = size(shape)
        packed = lengthen_runs(np.frombuffer(src.section("ternary"), np.uint8), -(-n // DIGITS))
        table = np.array([-scale, 0, scale], np.float32)
        return table[unpack_ternary(packed, n)].reshape(shape)


def pack_ternary(x: F32, half: float) -> U8:
    """Digits 0, 1, 2 for values below -half, between, above half; digit j of byte i is value i + j·⌈n/5⌉, the first the most significant.

    >>> pack_ternary(np.array([1, 0, 0, 0, 0, -1], np.float32), 0.5).tolist()
    [202, 112]
    """
    rows = -(-x.size // DIGITS)
    digits = np.ones(rows * DIGITS, np.uint8)
    digits[: x.size] += x > half
    digits[: x.size] -= x < -half
    packed: U8 = (digits.reshape(DIGITS, rows) * _PLACES.astype(np.uint8)[:, None]).sum(axis=0, dtype=np.uint8)
    return packed


def unpack_ternary(packed: U8, n: int) -> U8:
    digits = (packed // _PLACES.astype(np.uint8)[:, None] % 3).reshape(-1)
    if np.any(digits[n:] != 1):
        raise DecodeError("threelc: the padding is not zero")
    return digits[:n]


def shorten_runs(packed: U8) -> U8:
    """Two to fourteen bytes of zeros become one byte.

    >>> shorten_runs(np.array([121] * 17 + [5, 121], np.uint8)).tolist()
    [255, 244, 5, 121]
    """
    index = np.arange(packed.size)
    is_zero = packed == ZEROS
    within = index - np.maximum.accumulate(np.where(is_zero, -1, index)) - 1  # bytes of zeros right before this one
    leads = ~is_zero | (within % LONGEST_RUN == 0)
    starts = np.flatnonzero(leads)
    lengths = np.diff(starts, append=packed.size)
    out: U8 = np.where(lengths > 1, FIRST_RUN - 2 + lengths, packed[starts]).astype(np.uint8)
    return out


def lengthen_runs(coded: U8, n_bytes: int) -> U8:
    repeats = np.where(coded >= FIRST_RUN, coded.astype(np.int64) - (FIRST_RUN - 2), 1)
    if int(repeats.sum()) != n_bytes:
        raise DecodeError(f"threelc: the runs hold {int(repeats.sum())} bytes instead of {n_bytes}")
    return np.repeat(np.where(coded >= FIRST_RUN, np.uint8(ZEROS), coded), repeats)
