"""The table of a rANS stream: integer frequencies that suit counts, and both as a few bytes (kernels/rans_table.hpp).

Sums are made one by one and logarithms by sums and products, so that every back end chooses the same table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import U32, U64, Buffer
from perbit.kernels.reference.logarithm import exact_log2

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MIN_BITS, MAX_BITS = 8, 16  # of a rANS table

# Measured on many sources: with a state of at least 2^16 and frequencies summing to 2^bits, a symbol costs
# STATE_LOSS * 4^(bits - 16) * (1 - sum p^2) bits more than its share, and a lane's final state 24 bits of its 32.
STATE_LOSS = 0.005
STATE_BITS = 24


def rans_lanes(n: int) -> int:
    """How many interleaved states a stream of n symbols has (kernels/README.md)."""
    return 1 if n < 1024 else 4 if n < 8192 else 8 if n < 65536 else 32


def normalise(counts: U64, bits: int) -> U32:
    """Frequencies in proportion to the counts: they sum to 2^bits, and every symbol that occurs keeps at least 1.

    >>> normalise(np.array([3, 0, 1], np.uint64), 8).tolist()
    [192, 0, 64]
    """
    total = 1 << bits
    present = np.flatnonzero(counts)
    if not 1 <= len(present) <= total:
        raise ValueError(f"{len(present)} symbols occur, but frequencies must be shared among 1 to {total}")
    c = counts[present].astype(np.float64)
    f = _proportional(c, total)
    missing = total - int(f.sum())
    while missing > 0:  # one unit each where it shortens the code most
        gain = c * exact_log2(1 + 1 / f)
        f[np.argsort(-gain, kind="stable")[:missing]] += 1
        missing = total - int(f.sum())
    while missing < 0:  # one unit each where its loss lengthens the code least
        loss = np.full(len(f), np.inf)
        loss[f > 1] = -c[f > 1] * exact_log2(1 - 1 / f[f > 1])
        victims = np.argsort(loss, kind="stable")[: min(-missing, int((f > 1).sum()))]
        f[victims] -= 1
        missing = total - int(f.sum())
    freqs = np.zeros(len(counts), np.uint32)
    freqs[present] = f
    return freqs


def _proportional(c: NDArray[np.float64], total: int) -> I64:
    """max(1, floor(share)), where what the raised ones receive is taken from the others in proportion."""
    scale = total / c.sum()
    while True:
        rare = c * scale < 1
        rest = c[~rare].sum()
        if rest == 0:
            break
        tighter = max(total - int(rare.sum()), 1) / rest
        if tighter >= scale:
            break
        scale = tighter
    shares: I64 = np.maximum(np.floor(c * scale), 1).astype(np.int64)
    return shares


def cost_bits(counts: U64, freqs: U32, bits: int) -> float:
    """Expected size in bits of the rANS stream of symbols with these counts, without its table."""
    present = counts > 0
    c, p = counts[present].astype(np.float64), freqs[present].astype(np.float64) * 2.0**-bits
    n = float(c.sum())
    state_loss = STATE_LOSS * 4.0 ** (bits - 16) * (1 - _total(p * p))
    return float(-_total(c * exact_log2(p)) + n * state_loss + STATE_BITS * rans_lanes(int(n)))


def rans_table(counts: U64) -> tuple[U32, int, bytes, float]:
    """Frequencies, bits and serialised table for which table and stream together are about smallest; the bits of the stream."""
    if np.count_nonzero(counts) < 2:
        raise ValueError("a rANS table needs at least two symbols that occur")
    bits = best_bits(counts)
    freqs = normalise(counts, bits)
    return freqs, bits, write_freqs(freqs, bits), cost_bits(counts, freqs, bits)


def _total(values: F64) -> F64:
    """The sum along the last axis, one after the other."""
    total: F64 = np.add.accumulate(values, axis=-1)[..., -1]
    return total


def best_bits(counts: U64) -> int:
    """How finely to divide the probabilities, estimated for all sizes at once: what finer saves in the stream, it costs in the table.

    Per symbol of the stream: rare symbols are raised to 2^-bits, which takes that mass from the others; the rest is
    rounded to a relative 2^-bits/p; and large tables lose to the small state. Each table entry costs about one bit more per bit.
    """
    c = counts[counts > 0].astype(np.float64)
    n = float(c.sum())
    p = c / n
    lowest = max(MIN_BITS, (len(c) - 1).bit_length())
    choices = np.arange(lowest, MAX_BITS + 1)
    unit = 2.0 ** -choices[:, None]
    raised = _total(np.maximum(unit - p, 0)) / np.log(2)
    rounded = _total(np.where(p > unit, unit**2 / p, 0)) / (24 * np.log(2))
    state = STATE_LOSS * 4.0 ** (choices - 16) * (1 - _total(p * p))
    return int(choices[np.argmin(n * (raised + rounded + state) + len(c) * choices)])


# ---- serialisation: how many symbols follow the last one present, then for each symbol present (the last one is
# implied by the sum) the zeros before it, its class relative to its predecessor's, and the bits its class leaves open.
# The class of a frequency is its bit length, of a code length itself. Small numbers are Elias gamma codes, LSB first.


def write_freqs(freqs: U32, bits: int) -> bytes:
    """The table as bytes: bits - 8 in four bits, then the frequencies."""
    f = freqs.tolist()
    if np.count_nonzero(freqs) < 2 or sum(f) != 1 << bits or not MIN_BITS <= bits <= MAX_BITS:
        raise ValueError("a rANS table needs at least two symbols whose frequencies sum to 2^bits")
    writer = BitWriter()
    writer.put(bits - MIN_BITS, 4)
    for symbol, size in write_classes(writer, [v.bit_length() for v in f], _first_freq_class(bits, len(f))):
        writer.put(f[symbol] - (1 << size - 1), size - 1)
    return writer.finish()


def rans_read_table(data: Buffer, alphabet: int) -> tuple[U32, int, int]:
    """(frequencies, bits, bytes used) from the beginning of `data`; ValueError if they are no table."""
    reader = BitReader(data)
    bits = MIN_BITS + reader.take(4)
    if bits > MAX_BITS:
        raise ValueError("a rANS table has more than 16 bits")
    freqs = np.zeros(check_alphabet(alphabet), np.uint32)
    left = 1 << bits
    last = read_last(reader, alphabet)
    for symbol, size in read_classes(reader, last, _first_freq_class(bits, alphabet), bits):
        f = 1 << (size - 1) | reader.take(size - 1)
        left -= f
        if left <= 0:
            raise ValueError("the frequencies of a rANS table exceed their sum")
        freqs[symbol] = f
    if left == 1 << bits:
        raise ValueError("a rANS table needs at least two symbols")
    freqs[last] = left
    return freqs, bits, reader.finish()


def _first_freq_class(bits: int, alphabet: int) -> int:
    """A guess for the first class: that of the mean frequency."""
    return max(bits - (alphabet - 1).bit_length(), 1)


def check_alphabet(alphabet: int) -> int:
    if not 1 <= alphabet <= 4096:
        raise ValueError("the alphabet must have 1..4096 symbols")
    return alphabet


def write_classes(writer: BitWriter, classes: list[int], guess: int) -> Iterator[tuple[int, int]]:
    """Write which symbols occur and their classes; yields each symbol but the last, for the caller to add its open bits."""
    last = max(symbol for symbol, size in enumerate(classes) if size)
    writer.gamma(len(classes) - last)
    zeros = 0
    for symbol in range(last + 1):
        size = classes[symbol]
        if size == 0:
            zeros += 1
            continue
        if zeros:  # announced as class 0, which no symbol has
            writer.gamma(_fold(-guess))
            writer.gamma(zeros)
            zeros = 0
        if symbol < last:
            writer.gamma(_fold(size - guess))
            guess = size
            yield symbol, size


def _fold(difference: int) -> int:
    """0, 1, -1, 2, -2 ... as 1, 2, 3, 4, 5 ..."""
    return 2 * difference if difference > 0 else 1 - 2 * difference


class BitWriter:
    """Collects bits, LSB first."""

    def __init__(self) -> None:
        self.out, self.pending, self.count = bytearray(), 0, 0

    def put(self, value: int, width: int) -> None:
        self.pending |= value << self.count
        self.count += width
        if self.count >= 256:
            self.out += (self.pending & (1 << 256) - 1).to_bytes(32, "little")
            self.pending >>= 256
            self.count -= 256

    def gamma(self, value: int) -> None:
        """A positive number: as many zeros as it has bits after its first, a one, those bits."""
        after = value.bit_length() - 1
        self.put(1 << after | (value - (1 << after)) << after + 1, 2 * after + 1)

    def finish(self) -> bytes:
        return bytes(self.out) + self.pending.to_bytes((self.count + 7) // 8, "little")


class BitReader:
    """Bits of a bytes-like object, LSB first; zeros after its end, which `finish` reports."""

    def __init__(self, data: Buffer) -> None:
        self.data, self.position = memoryview(data).cast("B"), 0

    def _window(self) -> int:
        begin = self.position >> 3
        return int.from_bytes(self.data[begin : begin + 8], "little") >> (self.position & 7)

    def take(self, width: int) -> int:
        value = self._window() & ((1 << width) - 1)
        self.position += width
        return value

    def gamma(self) -> int:
        window = self._window()
        after = (window & -window).bit_length() - 1
        if not 0 <= after <= 12:  # nothing in a table exceeds 2^13
            raise ValueError("a table ends early or is corrupt")
        self.position += 2 * after + 1
        return 1 << after | (window >> (after + 1)) & ((1 << after) - 1)

    def finish(self) -> int:
        """Bytes used, once everything has been read."""
        used = (self.position + 7) // 8
        if used > len(self.data):
            raise ValueError("a table ends early")
        if self._window() & ((1 << (8 * used - self.position)) - 1):
            raise ValueError("a table has non-zero padding")
        return used


def read_last(reader: BitReader, alphabet: int) -> int:
    last = alphabet - reader.gamma()
    if last < 0:
        raise ValueError("a table has more symbols than its alphabet")
    return last


def read_classes(reader: BitReader, last: int, guess: int, largest: int) -> Iterator[tuple[int, int]]:
    """(symbol, class) of every symbol present before the last one; the caller takes the open bits in between."""
    symbol = 0
    after_zeros = False
    while symbol < last:
        size = guess + _unfold(reader.gamma())
        if size == 0 and not after_zeros:
            symbol += reader.gamma()
            after_zeros = True
            continue
        if not 1 <= size <= largest:
            raise ValueError("a table holds an impossible class")
        yield symbol, size
        symbol, guess, after_zeros = symbol + 1, size, False
    if symbol != last:
        raise ValueError("a table has more symbols than its alphabet")


def _unfold(code: int) -> int:
    return code // 2 if code % 2 == 0 else -(code // 2)
