"""Which of many sign patterns a block of values agrees with most, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import F32
from perbit.kernels.reference.checks import require, require_same_length
from perbit.kernels.reference.hadamard import hadamard

LONGEST = 256


def match_patterns(x: F32, length: int, signs: F32, symbols: NDArray[np.uint16], agreement: F32) -> None:
    fits = 8 <= length <= LONGEST and length & (length - 1) == 0
    require(fits, "the length of a pattern must be a power of two from 8 to 256")
    require(x.size % length == 0 and signs.size % length == 0, "values and signs must be whole blocks")
    require(1 <= signs.size <= 1 << 15, "there must be 1 to 32768 signs")
    blocks, each = x.reshape(-1, length), np.arange(x.size // length)
    require_same_length(each, symbols, agreement)
    symbols[:], agreement[:] = 0, 0
    for turn, turned in enumerate(signs.reshape(-1, length)):
        y = blocks * turned
        hadamard(y.reshape(-1), length, y.reshape(-1))
        row = np.abs(y).argmax(axis=1)
        found = y[each, row]
        better = np.abs(found) > agreement
        pattern = 2 * (turn * length + row) + (found < 0)
        symbols[better] = pattern[better]
        agreement[better] = np.abs(found[better])
