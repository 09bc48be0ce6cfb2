"""Lies of the symbol coders: packed bits, rANS and Huffman tables and streams."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

import perbit
from attacks.build import Bits, array, attack, sealed, section
from perbit.coding.bits import varint

Frames = Iterator[tuple[str, bytes, str]]
N = 20
RANGE = section(struct.pack("<ff", -1.0, 1.0))
CONSTANT, PACKED, TABLE, PRIOR = range(4)
LAST_OF_16 = 1  # gamma code: no symbols follow the last one present
CODERS = ("rans", "huffman")


def _uniform(coder: str, stream: bytes, n: int = N, bits: int = 4) -> bytes:
    return array(f"uniform({bits}) | {coder}", (n,), RANGE, section(stream))


def _valid(coder: str, n: int) -> tuple[bytes, bytes]:
    """A valid frame of n values, cut where its symbols begin: (everything before, the symbols)."""
    x = np.random.default_rng(0).laplace(size=n).astype(np.float32)
    frame = perbit.encode(x, f"uniform(4) | {coder}")
    length = next(part["n_bytes"] for part in perbit.inspect(frame)["sections"] if part["name"] == "symbols")
    body = frame[:-4]
    return body[: len(body) - length - len(varint(length))], body[len(body) - length :]


@attack
def packed_symbols() -> Frames:
    yield "too short", array("uniform(4) | pack", (N,), RANGE, section(bytes(9))), ""
    yield "too long", array("uniform(4) | pack", (N,), RANGE, section(bytes(11))), ""
    yield "bits behind the last", array("uniform(1) | pack", (N,), RANGE, section(b"\x00\x00\xf0")), ""
    norms = section(struct.pack("<f", 1.0))
    yield "outside the alphabet", array("qsgd(2) | pack", (8,), norms, section(b"\xff\xff\xff")), "outside the alphabet"
    for coder in CODERS:
        packed = varint(PACKED) + b"\xff\xff\xff"
        yield f"{coder}: outside the alphabet", array(f"qsgd(2) | {coder}", (8,), norms, section(packed)), "outside"
        yield f"{coder}: too short", _uniform(coder, varint(PACKED) + bytes(9)), "packed symbols"
        yield f"{coder}: too long", _uniform(coder, varint(PACKED) + bytes(11)), "left over"


@attack
def chunks() -> Frames:
    for coder in CODERS:
        yield f"{coder}: one missing", array(f"uniform(4) | {coder}", (N,), RANGE), "section 'symbols'"
        two = section(varint(CONSTANT) + varint(0)) * 2
        yield f"{coder}: one too many", array(f"uniform(4) | {coder}", (N,), RANGE, two), "left over"
        long = array(f"uniform(4) | {coder}", ((1 << 20) + 1,), RANGE, section(varint(CONSTANT) + varint(0)))
        yield f"{coder}: one of two", long, "limit|section 'symbols'"


@attack
def coding_modes() -> Frames:
    for coder in CODERS:
        yield f"{coder}: none", _uniform(coder, b""), "coding mode"
        yield f"{coder}: a prior that is not there", _uniform(coder, varint(PRIOR + 64) + bytes(20)), "does not exist"
        yield f"{coder}: no priors here", _uniform(coder, varint(PRIOR) + bytes(20), bits=9), "does not exist"
        yield f"{coder}: 2^62", _uniform(coder, varint(1 << 62) + bytes(20)), "does not exist"
        yield f"{coder}: a constant outside", _uniform(coder, varint(CONSTANT) + varint(16)), "symbol"
        yield f"{coder}: a constant and more", _uniform(coder, varint(CONSTANT) + b"\x00\x00"), "left over"
        yield f"{coder}: a constant without value", _uniform(coder, varint(CONSTANT)), "symbol"
        yield (
            f"{coder}: symbols for no values",
            array(f"uniform(4) | {coder}", (0,), RANGE, section(b"\x00")),
            "left over",
        )


@attack
def rans_tables() -> Frames:
    def frame(table: Bits, stream: bytes = struct.pack("<I", 1 << 16)) -> bytes:
        return _uniform("rans", varint(TABLE) + table.bytes() + stream)

    def table(bits: int = 8) -> Bits:
        return Bits().put(bits - 8, 4)

    yield "no table", _uniform("rans", varint(TABLE)), "table"
    yield "17 bits", frame(table(17)), "16 bits"
    yield "23 bits", frame(table(23)), "16 bits"
    yield "over-full", frame(table().gamma(LAST_OF_16).step(4).put(127, 7).step(0).put(0, 7)), "exceed their sum"
    yield "exactly full", frame(table().gamma(LAST_OF_16).step(4).put(0, 7).step(0).put(0, 7)), "exceed their sum"
    yield "a single symbol", frame(table().gamma(16)), "at least two symbols"
    yield "beyond the alphabet", frame(table().gamma(17)), "more symbols than its alphabet"
    yield "zeros beyond the alphabet", frame(table().gamma(LAST_OF_16).step(-4).gamma(4000)), "than its alphabet"
    yield "zeros twice", frame(table().gamma(LAST_OF_16).step(-4).gamma(1).step(-4).gamma(1)), "impossible class"
    yield "a class of 40 bits", frame(table().gamma(LAST_OF_16).step(36)), "impossible class"
    yield "an endless gamma code", frame(Bits().put(0, 200)), "table"
    halves = table().gamma(15).step(4).put(0, 7)
    padded = Bits().put(halves.value, halves.width).put(0x7F >> (halves.width - 1) % 8, -halves.width % 8)
    yield "padding that is not zero", frame(padded), "padding"
    yield "no stream", frame(halves, b""), "rANS|stream"
    yield "a state below 2^16", frame(halves, struct.pack("<I", 65535)), ""
    yield "a state of 2^32 - 1", frame(halves, b"\xff\xff\xff\xff"), ""


@attack
def huffman_tables() -> Frames:
    def frame(table: Bits, stream: bytes = bytes(10)) -> bytes:
        return _uniform("huffman", varint(TABLE) + table.bytes() + stream)

    yield "no table", _uniform("huffman", varint(TABLE)), "table"
    yield "over-full", frame(Bits().gamma(LAST_OF_16).step(-3).step(0).step(0)), "over-full"
    yield "incomplete", frame(Bits().gamma(14).step(-3).step(2)), "not complete"
    yield "beyond the alphabet", frame(Bits().gamma(17)), "more symbols than its alphabet"
    yield "a word of 16 bits", frame(Bits().gamma(LAST_OF_16).step(12)), "impossible class"
    chain = Bits().gamma(LAST_OF_16).step(-3)
    for _ in range(14):
        chain.step(1)
    yield "words of 15 bits for 16 symbols", frame(chain), ""
    yield "an endless gamma code", frame(Bits().put(0, 200)), "table"


@attack
def streams() -> Frames:
    for coder in CODERS:
        for n in (N, 2000, 10_000, 70_000):
            before, stream = _valid(coder, n)
            for name, damaged in {
                "a byte short": stream[:-1],
                "two bytes short": stream[:-2],
                "half": stream[: len(stream) // 2],
                "a zero byte long": stream + b"\x00",
                "two zero bytes long": stream + b"\x00\x00",
                "doubled": stream + stream[1:],
            }.items():
                yield f"{coder} of {n}: {name}", sealed(before + section(damaged)), ""


@attack
def sizes_of_huffman_streams() -> Frames:
    before, stream = _valid("huffman", 2000)
    assert PRIOR <= stream[0] < 128, "the sizes come right after a mode of one byte"
    for name, size in {"zero": 0, "2^32 - 1": 2**32 - 1, "2^31": 2**31, "all": len(stream), "one more": None}.items():
        for j in (0, 6):
            begin = 1 + 4 * j
            stated = int.from_bytes(stream[begin : begin + 4], "little") + 1 if size is None else size
            damaged = stream[:begin] + stated.to_bytes(4, "little") + stream[begin + 4 :]
            yield f"size of stream {j}: {name}", sealed(before + section(damaged)), ""
