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


def size(shape: Shape) -> int:
    """How many values an array of this shape has."""
    return math.prod(shape)


class Floats:
    """Float32 values on their way through a pipeline, with what one pass over them found."""

    def __init__(self, array: F32) -> None:
        self.array = array

    @property
    def flat(self) -> F32:
        return self.array.reshape(-1)

    @property
    def n(self) -> int:
        return self.array.size

    @cached_property
    def range(self) -> tuple[float, float, int]:
        """Smallest value, largest value, how many are NaN or infinite."""
        return K.scan(self.flat)

    @cached_property
    def moments(self) -> tuple[float, float, float, float, int]:
        """Sum, sum of magnitudes, sum of squares, largest magnitude, how many are zero."""
        return K.moments(self.flat)


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


def symbol_dtype(alphabet: int) -> type[np.uint8] | type[np.uint16]:
    """The smallest integer type that holds every symbol."""
    return np.uint8 if alphabet <= 256 else np.uint16
