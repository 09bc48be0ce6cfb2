"""A binary arithmetic code whose probabilities learn, in plain Python (kernels/bitcoder.hpp)."""

from __future__ import annotations

from perbit.kernels.api import Buffer
from perbit.kernels.reference.checks import require

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
            require(self.taken < len(self.data), "the coded data ends early")
            self.taken += 1
            following = self.data[self.taken + 3] if self.taken + 3 < len(self.data) else 0
            self.code = self.code << 8 & 0xFFFFFFFF | following
            self.interval.shift()
        return value

    def finish(self) -> None:
        end = self.interval.end()
        require(len(self.data) == self.taken + len(end), "the coded data has the wrong length")
        require(self.data[self.taken :] == end, "the coded data ends in a wrong byte")


def probability(p: int) -> int:
    return min(max(p, 16), 65520)


State = list[int]  # a learnt probability, and how often it was used


def learnt_bit(coder: BitEncoder | BitDecoder, bit: int, a: State, b: State, c: State) -> int:
    """One decision under the mean of three learnt probabilities, the last of which counts twice; they learn what it was."""
    bit = coder.bit(bit, probability((a[0] + b[0] + 2 * c[0]) >> (STATE_BITS + 2 - 16)))
    for state in (a, b, c):
        p, seen = state
        state[0] = p + (((CERTAIN if bit else 0) - p) * (65536 // (seen + 4)) >> 16)
        state[1] = min(seen + 1, LAST_COUNT)
    return bit
