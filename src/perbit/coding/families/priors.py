"""Probability tables that both ends derive by integer arithmetic, so that they cost one byte instead of a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import U32, U64

BITS = 14
_STEPS = 64
MAX_ALPHABET = 256


@dataclass(frozen=True)
class Geometric:
    """Two-sided geometric tables: the probability of a symbol falls by a factor j/64 with each step away from the centre."""

    alphabet: int
    centre: int

    def __len__(self) -> int:
        return _STEPS

    def freqs(self, index: int) -> tuple[U32, int]:
        return _geometric(self.alphabet, self.centre)[0][index], BITS

    def best(self, counts: U64) -> tuple[int, float]:
        costs = _geometric(self.alphabet, self.centre)[1] @ counts.astype(np.float64)
        index = int(np.argmin(costs))
        return index, float(costs[index])


def geometric(alphabet: int, centre: int) -> Geometric | None:
    """The family for an alphabet; none above 256 symbols, where 64 steps are too coarse and a table of one's own is cheap."""
    return Geometric(alphabet, centre) if alphabet <= MAX_ALPHABET else None


@lru_cache(maxsize=64)
def _geometric(alphabet: int, centre: int) -> tuple[U32, NDArray[np.float64]]:
    """The tables, and the bits each symbol costs under each."""
    distance = np.abs(np.arange(alphabet) - centre)
    weights = _powers(alphabet)[:, distance]
    share = weights * ((1 << BITS) - alphabet) // weights.sum(axis=1, keepdims=True)
    tables = 1 + share
    tables[:, centre] += (1 << BITS) - tables.sum(axis=1)  # what rounding left over goes to the most likely symbol
    return np.ascontiguousarray(tables, np.uint32), BITS - np.log2(tables)


@lru_cache(maxsize=16)
def _powers(count: int) -> NDArray[np.int64]:
    """Row j: 2^40 times the powers of j/64, rounded down at each step."""
    columns = [np.full(_STEPS, 1 << 40, np.int64)]
    for _ in range(count - 1):
        columns.append(columns[-1] * np.arange(_STEPS) // _STEPS)
    return np.stack(columns, axis=1)
