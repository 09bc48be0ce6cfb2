"""Positions as gaps under an adaptive binary arithmetic code, in plain Python (kernels/gaps.hpp says why it is built so)."""

from __future__ import annotations

import numpy as np

from perbit.kernels.api import U32, Buffer
from perbit.kernels.reference.checks import MAX_LENGTH, require

CLASSES, NODES, LEARNT_BITS = 33, 4, 2
DENSITIES = 64
STATE_BITS, LAST_COUNT = 22, 252
CERTAIN = (1 << STATE_BITS) - 1


class Interval:
    """The interval [low, high] of a 32-bit binary arithmetic code without carries."""

    def __init__(self) -> None:
        self.low, self.high = 0, 0xFFFFFFFF

    def split(self, p: int) -> int:
        return self.low + ((self.high - self.low) * p >> 16)

    def narrow(self, bit: int, middle: int) -> None:
        if bit:
            self.high = middle
        else:
            self.low = middle + 1

    @property
    def settled(self) -> bool:
        return (self.low ^ self.high) >> 24 == 0

    def shift(self) -> None:
        self.low = self.low << 8 & 0xFFFFFFFF
        self.high = self.high << 8 & 0xFFFFFFFF | 255

    def end(self) -> bytes:
        return bytes([(self.low >> 24) + 1]) if self.low else b""


class BitEncoder:
    def __init__(self) -> None:
        self.interval, self.out = Interval(), bytearray()

    def bit(self, value: int, p: int) -> int:
        self.interval.narrow(value, self.interval.split(p))
        while self.interval.settled:
            self.out.append(self.interval.high >> 24)
            self.interval.shift()
        return value

    def finish(self) -> bytes:
        return bytes(self.out) + self.interval.end()


class BitDecoder:
    def __init__(self, data: Buffer) -> None:
        self.data, self.taken, self.interval = bytes(data), 0, Interval()
        self.code = int.from_bytes(self.data[:4].ljust(4, b"\0"), "big")

    def bit(self, _: int, p: int) -> int:
        middle = self.interval.split(p)
        value = int(self.code <= middle)
        self.interval.narrow(value, middle)
        while self.interval.settled:
            require(self.taken < len(self.data), "position data ends early")
            self.taken += 1
            following = self.data[self.taken + 3] if self.taken + 3 < len(self.data) else 0
            self.code = self.code << 8 & 0xFFFFFFFF | following
            self.interval.shift()
        return value

    def finish(self) -> None:
        end = self.interval.end()
        require(len(self.data) == self.taken + len(end), "position data has the wrong length")
        require(self.data[self.taken :] == end, "position data ends in a wrong byte")


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
        self.learnt: dict[tuple[int, int, int], list[int]] = {}  # by kind of context, node and context
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
                bit = coder.bit(bit, _probability(self.one[below] >> (STATE_BITS - 16)))
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
        bit = coder.bit(bit, _probability((pair[0] + few[0] + 2 * many[0]) >> (STATE_BITS + 2 - 16)))
        for state in (pair, few, many):
            p, seen = state
            state[0] = p + (((CERTAIN if bit else 0) - p) * (65536 // (seen + 4)) >> 16)
            state[1] = min(seen + 1, LAST_COUNT)
        return bit


def _log(value: int) -> int:
    """log2, straight between powers of two, with twelve fraction bits."""
    c = value.bit_length() - 1
    return (c << 12) + (value << 12 >> c) - 4096


def _probability(p: int) -> int:
    return min(max(p, 16), 65520)


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
