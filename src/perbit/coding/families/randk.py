"""Random sparsification: positions that both ends draw from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.families.sparse import DENSIFYING, MAX_SPARSE, check_amount, check_size, densify, kept
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import F32, U32
from perbit.randomness import PIECE, fold, random_positions

FLOAT_MAX = np.finfo(np.float32).max


@register
@dataclass(frozen=True)
class RandK(FloatCodec):
    """k random positions without replacement; only a 4-byte seed travels. Scaled by n/k so that the mean is right.

    With a seed of its own (say, the number of the round, which both ends know) the positions cost nothing and are the same
    for everyone. One such codec always keeps the same positions: it is unbiased over seeds, not by itself.

    Args:
        ratio: the share of the values that is kept.
        k: how many values are kept, in place of a share.
        scaled: whether values are multiplied by n/k, so that the mean is right.
        seed: the same positions for everyone; without it a seed travels.
    """

    ratio: float | None = None
    k: int | None = None
    scaled: bool = True
    seed: int | None = None

    name = "randk"
    wire_id = 5
    examples = ("randk(0.1)", "randk(k=5, scaled=false) | fp16", "randk(0.25) | qsgd(3) | rans", "randk(0.25, seed=7)")
    gives = "floats"

    def __post_init__(self) -> None:
        check_amount(self, self.ratio, self.k)
        if not isinstance(self.scaled, bool):
            raise ValueError(f"scaled must be true or false, got {self.scaled}")
        whole = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        if self.seed is not None and not (whole and 0 <= self.seed < 1 << 32):
            raise ValueError(
                f"seed must be a whole number below 2^32, or none to draw one for each frame, got {self.seed}"
            )

    @property
    def unbiased(self) -> bool:
        return self.scaled and self.seed is None

    def omega(self, n: int) -> float:
        if n == 0:
            return 0.0
        k = self.passes_on(n)
        if self.seed is not None:  # no average over positions: all of x may be missed, or all of it scaled up
            return max(1.0, (n / k - 1) ** 2) if self.scaled else 1.0
        return n / k - 1 if self.scaled else 1 - k / n

    def growth(self, n: int) -> float:
        return max(1.0, (n / max(1, self.passes_on(n))) ** (1 if self.seed is None else 2)) if self.scaled else 1.0

    def passes_on(self, n: int) -> int:
        return kept(n, self.ratio, self.k)

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        check_size(values.n)
        seed = fold(key, 2) & 0xFFFFFFFF if self.seed is None else self.seed
        k = self.passes_on(values.n)
        chosen = values.at(random_positions(values.n, k, seed)).flat
        if self.scaled and k:
            with np.errstate(over="ignore"):
                chosen = np.clip(chosen * np.float32(values.n / k), -FLOAT_MAX, FLOAT_MAX)
        if self.seed is None:
            out.section(seed.to_bytes(4, "little"))
        rest.encode_floats(Floats(chosen), out, key)

    def cost(self, shape: Shape) -> Cost:
        """Positions are drawn piece by piece, each perhaps four times, then sorted."""
        n, k = size(shape), self.passes_on(size(shape))
        drawn = 0 if k == n else k
        return Cost(4 * (n + k) + DENSIFYING + 48 * min(drawn, PIECE), n + 8 * k + 320 * drawn)

    def _decode(self, src: Reader, shape: Shape, rest: Rest) -> tuple[U32, F32]:
        seed = _read_seed(src) if self.seed is None else self.seed
        n = size(shape)
        if n > MAX_SPARSE:
            raise DecodeError(f"randk: positions are 32-bit, the frame claims {n} values")
        k = self.passes_on(n)
        values = rest.decode_floats(src, (k,))  # first: it fails on short frames before any positions are drawn
        return random_positions(n, k, seed), values

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        return densify(*self._decode(src, shape, rest), shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        K.scatter_add(out, *self._decode(src, shape, rest), weight)


def _read_seed(src: Reader) -> int:
    seed = src.section("seed")
    if len(seed) != 4:
        raise DecodeError(f"randk: the seed has {len(seed)} bytes instead of 4")
    return int.from_bytes(seed, "little")
