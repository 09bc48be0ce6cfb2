"""Lies of a message's directory."""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from attacks.build import MESSAGE, PACKED, STATEFUL, attack, directory, message, sealed, section, spec, tensor
from perbit.coding.bits import varint

Frames = Iterator[tuple[str, bytes, str]]
RAW = spec("raw")
VALUE = section(bytes(4))
GOOD = directory([RAW], [tensor("a", (1,))])


def _packed(contents: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=19).compress(contents)


@attack
def directories() -> Frames:
    yield "empty", message(b""), "number of specs"
    yield "longer than the frame", sealed(b"pbit\x01\x01" + varint(1 << 40) + GOOD + VALUE), "truncated"
    yield "2^60 specs", message(varint(1 << 60) + RAW + varint(0)), "number of specs"
    yield "a spec too few", message(varint(2) + RAW + varint(0)), "number of stages|no stages"
    yield "2^60 tensors", message(varint(1) + RAW + varint(1 << 60) + tensor("a", (1,)), VALUE), "number of tensors"
    yield "a tensor too few", message(varint(1) + RAW + varint(2) + tensor("a", (1,)), VALUE), "length of a name"
    yield "bytes left over", message(GOOD + b"\x00", VALUE), "left over"
    yield "a spec that is not there", message(directory([RAW], [tensor("a", (1,), 1)]), VALUE), "names spec 1 of 1"
    yield "no specs", message(directory([], [tensor("a", (1,))]), VALUE), "names spec 0 of 0"
    yield "spec number 2^60", message(directory([RAW], [tensor("a", (1,), 1 << 60)]), VALUE), "names spec"
    yield "the same name twice", message(directory([RAW], [tensor("a", (1,))] * 2), VALUE, VALUE), "appears twice"
    yield "a name that is no text", message(directory([RAW], [tensor(b"\xff\xfe", (1,))]), VALUE), "not UTF-8"
    yield "a name beyond the directory", message(varint(1) + RAW + varint(1) + varint(1000) + b"a"), "name"
    yield "integers as fp16", message(directory([spec("fp16")], [tensor("a", (1,), dtype=7)]), VALUE), "can only be raw"


@attack
def message_payloads() -> Frames:
    two = directory([RAW], [tensor("a", (1,)), tensor("b", (1,))])
    yield "a tensor without payload", message(two, VALUE), "section 'values'"
    yield "a payload without tensor", message(GOOD, VALUE, VALUE), "left over"
    enormous = [tensor(f"{i}", (1 << 46,)) for i in range(5)]
    yield "the sum of all sizes", message(directory([RAW], enormous), VALUE), "above the limit"
    small = [tensor(f"{i}", (1 << 15,)) for i in range(5000)]
    yield "many tensors of half the limit", message(directory([RAW], small), VALUE), "above the limit"


@attack
def stateful_messages() -> Frames:
    yield "no sequence number", sealed(b"pbit\x01" + bytes([MESSAGE | STATEFUL])), "sequence number"
    yield "half a digest", sealed(b"pbit\x01" + bytes([MESSAGE | STATEFUL]) + b"\x05" + b"1234"), "digest"
    yield "an endless number", sealed(b"pbit\x01" + bytes([MESSAGE | STATEFUL]) + b"\xff" * 20), "63 bits"


@attack
def packed_directories() -> Frames:
    flags = MESSAGE | PACKED
    yield "empty", message(b"", flags=flags), "no zstd frame"
    yield "no zstd", message(b"not zstd at all", flags=flags), "no zstd frame"
    yield "cut short", message(_packed(GOOD)[:-3], VALUE, flags=flags), "zstd"
    yield "bytes behind", message(_packed(GOOD) + b"\x00", VALUE, flags=flags), "zstd"
    yield "two zstd frames", message(_packed(GOOD) * 2, VALUE, flags=flags), "zstd"
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(GOOD)
    yield "no content size", message(unsized, VALUE, flags=flags), "does not say its size"
    for size in (4, 1 << 31):  # a decoder that trusts this size allocates it
        skippable = b"\x50\x2a\x4d\x18" + size.to_bytes(4, "little") + b"skip"
        yield f"a skippable frame of {size} bytes", message(skippable, VALUE, flags=flags), "no zstd frame"
