"""Small whole numbers under an adaptive binary arithmetic code, in plain Python (kernels/levels.hpp says why it is built so)."""

from __future__ import annotations

import numpy as np

from perbit.kernels.api import F32, U32, Buffer
from perbit.kernels.reference.bitcoder import STATE_BITS, BitDecoder, BitEncoder, State, learnt_bit
from perbit.kernels.reference.checks import MAX_LENGTH, require

NODES, MEAN_BITS, MEAN_FLOOR = 18, 8, 16
LARGEST_IN_MEAN = 1023
LARGEST_LEVEL, LARGEST_MEAN = 1 << 30, LARGEST_IN_MEAN << MEAN_BITS
COARSE = 10
HALF = 1 << 15


def _fine(mean: int) -> int:
    y = mean + MEAN_FLOOR
    octave = y.bit_length() - 1
    return 2 * (octave - 4) + (y >> (octave - 1) & 1)


def _coarse(mean: int) -> int:
    return min(_fine(mean) // 2, COARSE - 1)


def _in_the_middle(fine: int) -> int:
    y = (2 + (fine & 1)) << (fine // 2 + 3)
    return y + y // 4 - MEAN_FLOOR


def _goes_on(mean: int) -> int:
    m = mean + MEAN_FLOOR // 2
    return (m << STATE_BITS) // (m + (1 << MEAN_BITS))


def _moved(mean: int, level: int, rate: int) -> int:
    return mean + (((min(level, LARGEST_IN_MEAN) << MEAN_BITS) - mean) >> rate)


class LevelModel:
    """The probability of every decision, in three kinds of context."""

    def __init__(self, columns: int, mean: int) -> None:
        self.fast = self.slow = self.last = self.before = mean
        self.column, self.at = [mean] * columns, 0
        self.learnt: dict[tuple[str, int, int], State] = {}

    def code(self, coder: BitEncoder | BitDecoder, level: int) -> int:
        """Code a level and return it; the decoder's argument does not matter."""
        along, across = (self.fast, self.column[self.at]) if self.column else (self.last, self.before)
        both = _coarse(along) * COARSE + _coarse(across)
        few, many = _fine((along + across) // 2), _fine(self.slow)
        result = 0
        while result < NODES and self._decision(coder, int(level > result), result, both, few, many):
            result += 1
        if result == NODES:
            result += _rest(coder, max(level - NODES, 0))
        self._remember(across, result)
        return result

    def _decision(self, coder: BitEncoder | BitDecoder, bit: int, node: int, both: int, few: int, many: int) -> int:
        middle = (_in_the_middle(2 * (both // COARSE)) + _in_the_middle(2 * (both % COARSE))) // 2
        a = self.learnt.setdefault(("both", node, both), [_goes_on(middle), 0])
        b = self.learnt.setdefault(("many", node, many), [_goes_on(_in_the_middle(many)), 0])
        c = self.learnt.setdefault(("few", node, few), [_goes_on(_in_the_middle(few)), 0])
        return learnt_bit(coder, bit, a, b, c)

    def _remember(self, across: int, level: int) -> None:
        if self.column:
            self.column[self.at] = _moved(across, level, 2)
            self.at = (self.at + 1) % len(self.column)
        else:
            self.before, self.last = self.last, min(level, LARGEST_IN_MEAN) << MEAN_BITS
        self.fast, self.slow = _moved(self.fast, level, 2), _moved(self.slow, level, 4)


def _rest(coder: BitEncoder | BitDecoder, value: int) -> int:
    """Elias gamma of value + 1, every bit at one half."""
    wanted = value + 1
    bits = 0
    while bits < 30 and coder.bit(int(bits < wanted.bit_length() - 1), HALF):
        bits += 1
    result = 1
    for below in range(bits - 1, -1, -1):
        result = result << 1 | coder.bit(wanted >> below & 1, HALF)
    return result - 1


def _require(columns: int, mean: int) -> None:
    require(columns <= MAX_LENGTH, "there are too many columns")
    require(mean <= LARGEST_MEAN, "the mean is too large")


def levels_encode(levels: U32, columns: int, mean: int) -> bytes:
    _require(columns, mean)
    coder, model = BitEncoder(), LevelModel(columns, mean)
    for level in levels.tolist():
        require(level <= LARGEST_LEVEL, "a level is too large")
        model.code(coder, level)
    return coder.finish()


def levels_decode(data: Buffer, columns: int, mean: int, out: U32) -> None:
    _require(columns, mean)
    coder, model = BitDecoder(data), LevelModel(columns, mean)
    for i in range(len(out)):
        out[i] = level = model.code(coder, 0)
        require(level <= LARGEST_LEVEL, "a level is too large")
    coder.finish()


def levels_decode_table(data: Buffer, columns: int, mean: int, table: F32, out: F32) -> None:
    levels = np.empty(len(out), np.uint32)
    levels_decode(data, columns, mean, levels)
    require(len(out) == 0 or int(levels.max()) < len(table), f"a level outside the alphabet of {len(table)}")
    out[:] = table[levels]
