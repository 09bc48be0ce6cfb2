"""Writing and reading the pieces of a frame: variable-length integers, sections, and what was read where."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding.cost import UNLIMITED, Budget, Cost
from perbit.errors import DecodeError

Piece = bytes | bytearray | memoryview
_BYTES = [bytes([value]) for value in range(0x80)]


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def varint(value: int) -> bytes:
    """Seven bits a byte, lowest first, high bit on all but the last.

    >>> varint(300).hex()
    'ac02'
    """
    if 0 <= value < 0x80:
        return _BYTES[value]
    if value < 0:
        raise ValueError(f"a varint holds no negative number, got {value}")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Writer:
    """Collects the pieces of a frame; they are joined once, at the end."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def raw(self, data: Piece) -> None:
        self.pieces.append(data)

    def varint(self, value: int) -> None:
        self.pieces.append(varint(value))

    def section(self, *pieces: Piece) -> None:
        """Pieces with their length in front; they are not copied until the end."""
        self.varint(sum(map(len, pieces)))
        self.pieces.extend(pieces)

    def join(self) -> bytes:
        return b"".join(self.pieces)


class Reader:
    """Reads what a Writer wrote, never past the end, and remembers the sections for `perbit.inspect`."""

    def __init__(self, data: Piece, budget: Budget | None = None) -> None:
        self.view = memoryview(data).cast("B")
        self.position = 0
        self.sections: list[tuple[str, int]] = []
        self.budget = budget  # what decoding may take; none where the bytes are one's own

    def spend(self, cost: Cost) -> None:
        """Pay for what a frame asks for, before it is done; LimitError if it is too much."""
        if self.budget is not None:
            self.budget.spend(cost)

    @property
    def left(self) -> Cost:
        """What may still be spent."""
        return self.budget.left if self.budget is not None else UNLIMITED

    @property
    def remaining(self) -> int:
        return len(self.view) - self.position

    def take(self, n_bytes: int, what: str) -> memoryview:
        if n_bytes > self.remaining:
            raise DecodeError(
                f"{what}: needs {n_bytes} bytes but only {self.remaining} are left; the frame is truncated"
            )
        piece = self.view[self.position : self.position + n_bytes]
        self.position += n_bytes
        return piece

    def byte(self, what: str) -> int:
        if self.position >= len(self.view):
            self.take(1, what)  # says what is missing
        self.position += 1
        return self.view[self.position - 1]

    def varint(self, what: str, limit: int = (1 << 63) - 1) -> int:
        value = shift = 0
        while True:
            byte = self.byte(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise DecodeError(f"{what}: a number longer than 63 bits")
        if byte == 0 and shift:
            raise DecodeError(f"{what}: a number with needless zero bytes")
        if value > limit:
            raise DecodeError(f"{what}: {value} is above the limit {limit}")
        return value

    def section(self, name: str) -> memoryview:
        n_bytes, at = self._length(name), self.position
        self.sections.append((name, n_bytes))
        if n_bytes > self.remaining:
            self.take(n_bytes, f"section {name!r}")  # says what is missing
        self.position = at + n_bytes
        return self.view[at : self.position]

    def _length(self, name: str) -> int:
        """Of most sections it is one byte."""
        if self.remaining and (byte := self.view[self.position]) < 0x80:
            self.position += 1
            return byte
        return self.varint(f"length of section {name!r}")

    def end(self) -> None:
        if self.remaining:
            raise DecodeError(f"{self.remaining} bytes are left over after the last section")
