"""Probability tables that both ends derive by integer arithmetic, so that they cost one byte instead of a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import U32, U64

BITS = 14
_STEPS = 64


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


@lru_cache(maxsize=64)
def _geometric(alphabet: int, centre: int) -> tuple[U32, NDArray[np.float64]]:
    """The tables, and the bits each symbol costs under each."""
    tables = np.stack([_one_table(alphabet, centre, j) for j in range(_STEPS)])
    return tables, BITS - np.log2(tables)


def _one_table(alphabet: int, centre: int, j: int) -> U32:
    weights, weight = [], 1 << 40
    for _ in range(alphabet):
        weights.append(weight)
        weight = weight * j // _STEPS
    by_symbol = [weights[abs(symbol - centre)] for symbol in range(alphabet)]
    total = sum(by_symbol)
    freqs = [max(1, (weight << BITS) // total) for weight in by_symbol]
    freqs[centre] += (1 << BITS) - sum(freqs)  # what rounding left over goes to the most likely symbol
    return np.array(freqs, np.uint32)
