"""Positions as a Bloom filter: few bits, and a few positions too many (DeepReduce, Xu et al., 2021).

The decoder asks the filter about every position; P is what it accepts. The policy says which of P count:

- p0: all of them; their values are sent too, so nothing is lost;
- p1: as many as there were, drawn at random;
- p2_authors: as many as there were, those first that some bit of the filter speaks for alone, then one for each bit that no chosen
  position explains, as the authors' released code has it;
- p2: the same without looking whether a bit is explained, so that fewer of the positions are true. Older frames have it;
- naive: the first ones, with the values of the true positions in order. Wrong from the first false positive on: the paper's warning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perbit.coding.bits import Piece
from perbit.coding.codec import PositionCodec
from perbit.coding.cost import Cost
from perbit.coding.registry import register
from perbit.errors import DecodeError, EncodeError
from perbit.kernels import K
from perbit.kernels.api import U32
from perbit.randomness import PIECE, fold, random_positions

_SEED_BYTES = 4
_MIN_BYTES = 8  # of a filter: a handful of positions would fill fewer bits unevenly
_MAX_BYTES = (1 << 29) - 1
_MIN_FPR = 2.0**-32
WORD = 32  # bits of a block for each hash
_MAX_HASHES = {"standard": 32, "blocked": 8}
_POLICIES = ("p0", "p1", "p2", "p2_authors", "naive")
_RULES = ("rounded", "ceiling", "density")


@register
@dataclass(frozen=True)
class Bloom(PositionCodec):
    """A Bloom filter with false-positive rate `fpr`; `policy` says which of the positions it accepts are meant.

    Args:
        policy: "p0": all positions that the filter accepts; "p1", "p2", "naive": other choices among them, "p2_authors" as in the authors'
            code (docs/format.md).
        fpr: the false-positive rate, between 0 and 1.
        layout: "standard", or "blocked": faster, a little larger.
        rule: how many hashes there are: log₂(1/rate), "rounded" or, as in the authors' code, the "ceiling". With "density", also theirs, the
            rate is fpr·k/n for k positions of n values (they take fpr = 0.1).
    """

    policy: str = "p0"
    fpr: float = 0.001
    layout: str = "standard"
    rule: str = "rounded"

    name = "bloom"
    wire_id = 36
    examples = (
        "topk(0.1, positions=bloom)",
        'topk(0.1, positions=bloom("p0", 0.6, layout="blocked")) | qsgd(15) | rans',
        'topk(0.05, positions=bloom("p1"))',
        'topk(0.05, positions=bloom("p2", 0.1))',
        'topk(0.05, positions=bloom("p2_authors", 0.1))',
        'topk(0.1, positions=bloom("p0", 0.1, rule="density"))',
        'topk(0.05, positions=bloom("p2_authors", 0.05, rule="ceiling"))',
        'topk(0.05, positions=bloom("naive", 0.01))',
    )

    def __post_init__(self) -> None:
        if self.policy not in _POLICIES:
            raise ValueError(f'policy must be "p0", "p1", "p2", "p2_authors" or "naive", got {self.policy!r}')
        if not isinstance(self.fpr, float) or not _MIN_FPR <= self.fpr < 1:
            raise ValueError(f"fpr must be at least 2^-32 and below 1, got {self.fpr}")
        if self.layout not in _MAX_HASHES:
            raise ValueError(f'layout must be "standard" or "blocked", got {self.layout!r}')
        if self.rule not in _RULES:
            raise ValueError(f'rule must be "rounded", "ceiling" or "density", got {self.rule!r}')

    @property
    def exact(self) -> bool:
        return self.policy == "p0"

    def found(self, k: int, n: int) -> int:
        return n if self.policy == "p0" and k else k

    def omega(self, n: int) -> float:
        """All values of the tensor may be missed; the naive policy may put as many in the wrong place."""
        return {"p0": 0.0, "naive": 4.0}.get(self.policy, 1.0)

    @property
    def hashes(self) -> int:
        """log₂(1/fpr), rounded or rounded up."""
        wanted = -math.log2(self.fpr)
        return min(max(1, round(wanted) if self.rule == "rounded" else math.ceil(wanted)), _MAX_HASHES[self.layout])

    @property
    def blocked(self) -> bool:
        return self.layout == "blocked"

    def at(self, count: int, n: int) -> Bloom:
        """The filter for `count` of n values: itself, unless its rate follows from the density."""
        if self.rule != "density":
            return self
        return replace(self, fpr=max(_MIN_FPR, self.fpr * count / n), rule="ceiling")

    def filter_bytes(self, count: int) -> int:
        """Standard: count·log₂(1/fpr)/ln 2 bits. Blocked: as many blocks as bring the expected rate down to fpr."""
        if not self.blocked:
            return max(_MIN_BYTES, math.ceil(count * -math.log2(self.fpr) / math.log(2) / 8))
        load = _largest_load(self.fpr, self.hashes)
        return max(2, math.ceil(count / load)) * self.hashes * WORD // 8

    def encode(self, positions: U32, n: int) -> bytes:
        return self.transmit(positions, n, 0)[0]

    def transmit(self, positions: U32, n: int, key: int) -> tuple[bytes, U32]:
        if positions.size == 0:
            return b"", positions
        filter_ = self.at(positions.size, n)
        n_bytes = filter_.filter_bytes(positions.size)
        if n_bytes > _MAX_BYTES:
            raise EncodeError(f"bloom: a filter for {positions.size} positions exceeds 2^32 bits; split the tensor")
        seed = fold(key, 5) & 0xFFFFFFFF
        data = K.bloom_build(positions, n_bytes, filter_.hashes, seed, self.blocked)
        chosen = self._choose(data, seed, filter_.hashes, n, positions.size, n) if self.policy != "naive" else positions
        head = seed.to_bytes(_SEED_BYTES, "little") + (bytes([filter_.hashes]) if self.rule == "density" else b"")
        return head + data, chosen

    def _parts(self, data: Piece) -> tuple[int, int, memoryview]:
        """Seed, number of hashes and filter of a section that has more bytes than its head."""
        view, head = memoryview(data), self._head_bytes
        return (
            int.from_bytes(view[:_SEED_BYTES], "little"),
            view[head - 1] if self.rule == "density" else self.hashes,
            view[head:],
        )

    @property
    def _head_bytes(self) -> int:
        return _SEED_BYTES + (self.rule == "density")

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        """Every position is asked for, bit by bit; how many are accepted, the share of bits that are set tells."""
        if len(data) <= self._head_bytes:
            return Cost()
        _, hashes, filter_ = self._parts(data)
        hashes = min(max(1, hashes), _MAX_HASHES[self.layout])
        share = float(np.unpackbits(np.frombuffer(filter_, np.uint8)).mean())
        asked = int(n * (4 + 2 * min(hashes, 1 / max(1 - share, 1 / hashes))))
        if self.policy == "p0":
            return Cost(4 * count, asked)
        # A blocked filter accepts whatever falls into a full block.
        accepted = min(n, int(4 * n * (share if self.blocked else share**hashes)) + 4 * count)
        drawn = Cost(12 * accepted + 48 * min(count, PIECE), 400 * count) if self.policy == "p1" else Cost(4 * accepted)
        if not self._has_sets:
            return Cost(4 * accepted, asked) + drawn
        members = min(hashes * accepted, 2 * n + 64 * len(data))  # more are refused
        return Cost(4 * accepted, asked) + drawn + Cost(16 * accepted + 64 * members, 100 * accepted + 80 * members)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        if count == 0 and len(data) == 0:
            return np.empty(0, np.uint32)
        if count == 0 or len(data) <= self._head_bytes:
            raise DecodeError(f"bloom: {len(data)} bytes for {count} positions")
        seed, hashes, filter_ = self._parts(data)
        try:
            found = self._choose(filter_, seed, hashes, n, count, count if self.policy == "p0" else n)
        except ValueError as error:
            raise DecodeError(f"bloom: {error}") from error
        if found.size != count:
            raise DecodeError(f"bloom: the filter accepts {found.size} positions instead of {count}")
        return found

    @property
    def _has_sets(self) -> bool:
        return self.policy in ("p2", "p2_authors")

    def _choose(self, data: Piece, seed: int, hashes: int, n: int, count: int, limit: int) -> U32:
        """What both ends make of a filter."""
        if self._has_sets:  # a member for each hash of each accepted position: bounded for any filter
            limit = min(limit, (2 * n + 64 * len(data)) // max(1, hashes))
        accepted = K.bloom_query(data, n, hashes, seed, self.blocked, limit)
        if self.policy == "p0":
            return accepted
        if accepted.size < count:
            raise ValueError("the filter accepts fewer positions than there are")
        if self.policy == "p1":
            return accepted[random_positions(accepted.size, count, seed)]
        if self._has_sets:
            skip = self.policy == "p2_authors"
            return K.bloom_resolve(accepted, len(data), hashes, seed, self.blocked, count, skip)
        return accepted[:count]


def blocked_fpr(count: float, blocks: int, hashes: int) -> float:
    """The rate of a blocked filter: each word of a block holds one bit of each position that falls into the block.

    How many of the positions share a block is binomial; a block with j of them accepts with (1 - (31/32)^j)^hashes.
    """
    load = count / blocks
    j = np.arange(1, min(int(count), int(load + 12 * math.sqrt(load)) + 30) + 1)
    ways = np.cumsum(np.log((count + 1 - j) / j))
    weights = np.exp(ways - j * math.log(blocks) + (count - j) * math.log1p(-1 / blocks))
    return float(weights @ (1 - (1 - 1 / WORD) ** j) ** hashes)


@lru_cache
def _largest_load(fpr: float, hashes: int) -> float:
    """The most positions a block may hold on average in a large filter."""
    blocks = 1 << 20
    low, high = 1e-5, 1e3
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if blocked_fpr(middle * blocks, blocks, hashes) <= fpr else (low, middle)
    return low
