"""What passes through a pipeline: floats with their statistics, symbols to be made, and how to turn symbols back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from perbit.coding.bits import Piece
from perbit.kernels import K
from perbit.kernels.api import F32, U32, U64, Symbols

Shape = tuple[int, ...]
Range = tuple[float, float, int]  # smallest value, largest value, how many are NaN or infinite


def size(shape: Shape) -> int:
    """How many values an array of this shape has."""
    return math.prod(shape)


class Echo:
    """The decoded values of what was just encoded, by a shorter way than through the frame: for encoders that must know what others decode.

    A codec that knows such a way sets `add(out, weight)`, which adds the same bits as decoding would; it is good once the encoder is done.
    """

    def __init__(self) -> None:
        self.add: Callable[[F32, float], None] | None = None
        self.n_bytes = 0  # of the frame, for a decoder that goes past them


class Recall:
    """What an encoder keeps from one message of a tensor to the next, where error feedback brings back what was not sent. Decoders have none.

    A codec that searches sets `found` to where its next search may begin; it takes from it what fits, and does without.
    """

    def __init__(self, found: F32 | None = None) -> None:
        self.found = found


@dataclass(frozen=True)
class Known:
    """What whoever hands over values knows of them beforehand."""

    range: Range | None = None
    recall: Recall | None = None


class Floats:
    """Float32 values on their way through a pipeline, with what one pass over them found.

    They may lie where the host's kernels cannot read them (perbit.torch.device). So codecs ask for what they need by the methods below
    where they can; `flat` and `array` are always there, but may be copies from far away.
    """

    echo: Echo | None = None  # where whoever encodes wants to know what will be decoded
    recall: Recall | None = None  # of the tensor's last message

    def __init__(self, array: F32) -> None:
        self.array = array

    @property
    def flat(self) -> F32:
        return self.array.reshape(-1)

    @property
    def n(self) -> int:
        return self.array.size

    @cached_property
    def range(self) -> Range:
        """Smallest value, largest value, how many are NaN or infinite."""
        return K.scan(self.flat)

    @cached_property
    def moments(self) -> tuple[float, float, float, float, int]:
        """Sum, sum of magnitudes, sum of squares, largest magnitude, how many are zero."""
        return K.moments(self.flat)

    def bucket_norms(self, bucket: int, kind: str) -> F32:
        """The norm of every `bucket` values: "l2", or "max"."""
        return K.bucket_norms(self.flat, bucket, kind)

    def top_k(self, k: int) -> U32:
        """Positions of the k largest magnitudes, ascending."""
        return K.top_k(self.flat, k)

    def above(self, threshold: float) -> U32:
        """Positions of all magnitudes of at least the threshold, ascending."""
        return K.select_above(self.flat, threshold)

    def at(self, positions: U32) -> Floats:
        """The values at positions that are known to exist: without checking each, this is twice as fast."""
        return Floats(self.flat.take(positions, mode="clip"))

    def every(self, stride: int) -> F32:
        """One value of so many, for a guess at all of them."""
        return self.flat[::stride]

    # --- symbols of the values [lo, hi), which are those of one chunk, as kernels/README.md defines them --------------

    def quantize_uniform(self, lo: int, hi: int, scale: float, offset: float, levels: int, out: Symbols) -> None:
        K.quantize_uniform(self.flat[lo:hi], scale, offset, levels, out)

    def quantize_uniform_random(
        self, lo: int, hi: int, scale: float, offset: float, levels: int, key: int, out: Symbols
    ) -> None:
        K.quantize_uniform_random(self.flat[lo:hi], scale, offset, levels, key, lo, out)

    def quantize_levels_random(
        self, lo: int, hi: int, scales: F32, bucket: int, levels: int, key: int, out: Symbols
    ) -> None:
        K.quantize_levels_random(self.flat[lo:hi], scales, bucket, levels, key, lo, out)

    def quantize_codebook(self, lo: int, hi: int, thresholds: F32, out: Symbols) -> None:
        K.quantize_codebook(self.flat[lo:hi], thresholds, out)


class Prior(Protocol):
    """Probability tables both ends know: the entropy coder may name one instead of sending its own."""

    def __len__(self) -> int: ...
    def freqs(self, index: int) -> tuple[U32, int]:
        """Integer frequencies of table `index` and the bits they sum to (their sum is 2^bits)."""
        ...

    def best(self, counts: U64) -> tuple[int, float]:
        """The table that codes these counts in the fewest bits, and how many."""
        ...


@dataclass(frozen=True, eq=False)
class Quantized:
    """What a quantizer hands on: side sections, and symbols that are made chunk by chunk when they are needed."""

    sides: list[tuple[str, Piece]]
    alphabet: int
    fill: Callable[[int, int, Symbols], None]  # writes the symbols of values [lo, hi) into the array
    prior: Prior | None = None


@dataclass(frozen=True, eq=False)
class Dequantizer:
    """What a quantizer recovers from its side sections: symbol s of bucket j means table[s] (times norms[j])."""

    table: F32
    norms: F32 | None = None
    bucket: int = 0
    prior: Prior | None = None

    @property
    def alphabet(self) -> int:
        return len(self.table)

    def values(self, symbols: Symbols, start: int, out: F32) -> None:
        """What symbols mean that belong to values start, start+1, …"""
        if self.norms is None:
            K.dequantize(symbols, self.table, out)
        else:
            K.dequantize_buckets(symbols, self.table, self.norms, self.bucket, start, out)

    def add(self, symbols: Symbols, start: int, out: F32, weight: float) -> None:
        """Add weight times what they mean."""
        if self.norms is None:
            K.axpy_table(out, symbols, self.table, weight)
        else:
            K.axpy_buckets(out, symbols, self.table, self.norms, self.bucket, start, weight)


def symbol_dtype(alphabet: int) -> type[np.uint8] | type[np.uint16]:
    """The smallest integer type that holds every symbol."""
    return np.uint8 if alphabet <= 256 else np.uint16
