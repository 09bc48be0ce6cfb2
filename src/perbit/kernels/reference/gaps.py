"""Positions as gaps under an adaptive binary arithmetic code, in plain Python (kernels/gaps.hpp says why it is built so)."""

from __future__ import annotations

import numpy as np

from perbit.kernels.api import U32, Buffer
from perbit.kernels.reference.bitcoder import STATE_BITS, BitDecoder, BitEncoder, State, learnt_bit, probability
from perbit.kernels.reference.checks import MAX_LENGTH, require

CLASSES, NODES, LEARNT_BITS = 33, 4, 2
DENSITIES = 64


class GapModel:
    """The probability of every decision as [p, times seen], in three kinds of context."""

    def __init__(self, n: int, count: int) -> None:
        goes_on, self.one = [], []
        absent = ((n - count) << 32) // n
        for _ in range(CLASSES):
            self.one.append((absent << STATE_BITS) // ((1 << 32) + absent))
            goes_on.append(absent >> (32 - STATE_BITS))
            absent = absent * absent >> 32
        self.start: list[int] = []
        for c in range(CLASSES):
            self.start += [goes_on[c], self.one[c - min(c, 1)], *2 * [self.one[c - min(c, 2)]]]
        self.learnt: dict[tuple[int, int, int], State] = {}  # by kind of context, node and context
        mean = n // count
        self.last = self.before = mean.bit_length() - 1
        self.few_mean = self.many_mean = _log(mean)

    def code(self, coder: BitEncoder | BitDecoder, value: int) -> int:
        """Code gap + 1 and return it; the decoder's argument does not matter."""
        wanted = value.bit_length() - 1
        at = (
            min(self.last, 15) * 16 + min(self.before, 15),
            min(self.few_mean >> 11, DENSITIES - 1),
            min(self.many_mean >> 11, DENSITIES - 1),
        )
        c = 0
        while c < CLASSES - 1 and self._learnt_bit(coder, int(c < wanted), c * NODES, at):
            c += 1
        result = 1
        for done in range(c):
            below = c - 1 - done
            bit = value >> below & 1
            if done < LEARNT_BITS:
                bit = self._learnt_bit(coder, bit, c * NODES + (2 + (result & 1) if done else 1), at)
            else:
                bit = coder.bit(bit, probability(self.one[below] >> (STATE_BITS - 16)))
            result = result << 1 | bit
        log = _log(result)
        self.few_mean += (log - self.few_mean) >> 2
        self.many_mean += (log - self.many_mean) >> 4
        self.last, self.before = c, self.last
        return result

    def _learnt_bit(self, coder: BitEncoder | BitDecoder, bit: int, node: int, at: tuple[int, int, int]) -> int:
        pair, few, many = (
            self.learnt.setdefault((kind, node, context), [self.start[node], 0]) for kind, context in enumerate(at)
        )
        return learnt_bit(coder, bit, pair, few, many)


def _log(value: int) -> int:
    """log2, straight between powers of two, with twelve fraction bits."""
    c = value.bit_length() - 1
    return (c << 12) + (value << 12 >> c) - 4096


def require_tensor(n: int, count: int) -> None:
    require(n <= MAX_LENGTH, "positions are 32-bit: n is too large")
    require(count <= n, "there are more positions than elements")


def require_positions(positions: U32, n: int) -> None:
    require_tensor(n, len(positions))
    require(bool(np.all(positions[1:] > positions[:-1])), "positions must be strictly ascending")
    require(len(positions) == 0 or int(positions[-1]) < n, "a position lies outside the tensor")


def gaps_encode(positions: U32, n: int) -> bytes:
    require_positions(positions, n)
    coder = BitEncoder()
    if len(positions):
        model, following = GapModel(n, len(positions)), 0
        for position in positions.tolist():
            model.code(coder, position - following + 1)
            following = position + 1
    return coder.finish()


def gaps_decode(data: Buffer, count: int, n: int) -> U32:
    require_tensor(n, count)
    coder = BitDecoder(data)
    positions = []
    if count:
        model, following = GapModel(n, count), 0
        for _ in range(count):
            following += model.code(coder, 1)
            require(following <= n, "a position lies outside the tensor")
            positions.append(following - 1)
    coder.finish()
    return np.array(positions, np.uint32)
