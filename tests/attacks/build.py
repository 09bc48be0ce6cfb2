"""Frames by hand: everything a hostile sender can write, with a valid checksum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import perbit
from perbit.coding.bits import varint
from perbit.frame.wirespec import write_spec
from perbit.kernels import K

FLOAT32 = 0
MESSAGE, STATEFUL, PACKED = 1, 2, 4


class Attack(NamedTuple):
    """A frame, and a part of the error it must end in."""

    name: str
    frame: bytes
    reason: str


Maker = Callable[[], Iterator[tuple[str, bytes, str]]]
ATTACKS: dict[str, Maker] = {}


def attack(make: Maker) -> Maker:
    """Register a function that yields (name, frame, part of the error)."""
    kind = make.__name__.replace("_", " ")
    if kind in ATTACKS:
        raise ValueError(f"there is an attack {kind!r} already")
    ATTACKS[kind] = make
    return make


def sealed(body: bytes) -> bytes:
    """A body with the checksum it deserves."""
    return body + K.crc32c(body).to_bytes(4, "little")


def spec(text: str) -> bytes:
    return write_spec(perbit.codec(text))


def section(data: bytes) -> bytes:
    return varint(len(data)) + data


def head(shape: tuple[int, ...], dtype: int = FLOAT32) -> bytes:
    return bytes([dtype]) + varint(len(shape)) + b"".join(map(varint, shape))


def array(codec: str | bytes, shape: tuple[int, ...], *payload: bytes, dtype: int = FLOAT32) -> bytes:
    """A frame of one array: the codec as text or as the bytes of a spec, then whatever the payload is."""
    written = spec(codec) if isinstance(codec, str) else codec
    return sealed(b"pbit\x01\x00" + head(shape, dtype) + written + b"".join(payload))


def directory(specs: list[bytes], tensors: list[bytes]) -> bytes:
    return varint(len(specs)) + b"".join(specs) + varint(len(tensors)) + b"".join(tensors)


def tensor(name: str | bytes, shape: tuple[int, ...], spec_number: int = 0, dtype: int = FLOAT32) -> bytes:
    return section(name.encode() if isinstance(name, str) else name) + head(shape, dtype) + varint(spec_number)


def message(contents: bytes, *payload: bytes, flags: int = MESSAGE) -> bytes:
    return sealed(b"pbit\x01" + bytes([flags]) + section(contents) + b"".join(payload))


class Bits:
    """A bit string, lowest bit first, as the entropy tables are written."""

    def __init__(self) -> None:
        self.value = self.width = 0

    def put(self, value: int, width: int) -> Bits:
        self.value |= value << self.width
        self.width += width
        return self

    def gamma(self, value: int) -> Bits:
        after = value.bit_length() - 1
        return self.put(1 << after | (value - (1 << after)) << (after + 1), 2 * after + 1)

    def step(self, difference: int) -> Bits:
        """A signed difference: 0, 1, -1, 2 ... as gamma codes of 1, 2, 3, 4 ..."""
        return self.gamma(2 * difference if difference > 0 else 1 - 2 * difference)

    def bytes(self) -> bytes:
        return self.value.to_bytes((self.width + 7) // 8, "little")
