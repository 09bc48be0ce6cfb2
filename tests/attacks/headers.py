"""Lies of the frame itself and of the header of one array."""

from __future__ import annotations

from collections.abc import Iterator

from attacks.build import array, attack, sealed, section, spec
from perbit.coding.bits import varint

Frames = Iterator[tuple[str, bytes, str]]
TEN_FLOATS = section(bytes(40))
RAW = spec("raw")


def _with_head(head: bytes, payload: bytes = TEN_FLOATS) -> bytes:
    return sealed(b"pbit\x01\x00" + head + payload)


@attack
def no_frame() -> Frames:
    yield "empty", b"", "not a perbit frame"
    yield "magic only", b"pbit", "not a perbit frame"
    yield "nine bytes", b"pbit\x01\x00\x00\x00\x00", "not a perbit frame"
    yield "other magic", sealed(b"PBIT\x01\x00" + bytes(20)), "not a perbit frame"
    yield "zeros", bytes(100), "not a perbit frame"
    yield "nothing after the flags", sealed(b"pbit\x01\x00"), "dtype"
    yield "version 0", sealed(b"pbit\x00\x00" + bytes(20)), "version 0"
    yield "version 2", sealed(b"pbit\x02\x00" + bytes(20)), "version 2"
    yield "another checksum", b"pbit\x01\x00\x00\x00" + RAW + bytes(4), "checksum"


@attack
def flags() -> Frames:
    for flag in (2, 4, 6, 8, 9, 16, 128, 255):
        yield f"{flag}", sealed(b"pbit\x01" + bytes([flag]) + b"\x00\x01\x0a" + RAW + TEN_FLOATS), "unknown flags"


@attack
def dtypes() -> Frames:
    for dtype in (15, 100, 255):
        yield f"{dtype}", array("raw", (10,), TEN_FLOATS, dtype=dtype), "unknown dtype"
    for dtype in (4, 11, 12, 13, 14):
        yield f"{dtype} as fp16", array("fp16", (10,), section(bytes(20)), dtype=dtype), "can only be raw"
    yield "a bool that is 2", array("raw", (3,), section(b"\x00\x01\x02"), dtype=12), "neither 0 nor 1"


@attack
def shapes() -> Frames:
    yield "33 dimensions", array("raw", (1,) * 33, section(bytes(4))), "number of dimensions"
    yield "2^62 dimensions", _with_head(b"\x00" + varint(1 << 62) + RAW), "number of dimensions"
    yield "a dimension of 2^48", array("raw", (1 << 48,), TEN_FLOATS), "dimension"
    for codec in ("raw", "raw | zstd", "topk(0.5)", "randk(0.5)", "uniform(4) | rans", "qsgd(1, bucket=0) | huffman"):
        yield f"2^47 values of {codec}", array(codec, (1 << 47,), TEN_FLOATS), "above the limit"
        yield f"2^80 values of {codec}", array(codec, (1 << 40, 1 << 40), TEN_FLOATS), "above the limit"
        yield f"2^64 values of {codec}", array(codec, (1 << 32, 1 << 32), TEN_FLOATS), "above the limit"
    yield "2^32 to the 32nd", array("raw", (1 << 32,) * 32, TEN_FLOATS), "above the limit"
    yield "nothing, enormously", array("raw", (0,) + (1 << 47,) * 3, section(b"")), "malformed frame"
    yield "missing dimensions", _with_head(b"\x00\x05\x01\x01", b""), "dimension"


@attack
def varints() -> Frames:
    yield "needless zero byte", _with_head(b"\x00\x01\x8a\x00" + RAW), "needless zero"
    yield "ten bytes", _with_head(b"\x00\x01" + b"\xff" * 9 + b"\x7f" + RAW), "dimension"
    yield "a hundred bytes", _with_head(b"\x00\x01" + b"\x80" * 100 + b"\x01" + RAW), "longer than 63 bits"
    yield "no end", sealed(b"pbit\x01\x00\x00\x01" + b"\xff" * 5), "dimension"


@attack
def lengths() -> Frames:
    yield "a section beyond the frame", array("raw", (10,), varint(41), bytes(40)), "truncated"
    yield "a section of 2^62 bytes", array("raw", (10,), varint(1 << 62), bytes(40)), "truncated"
    yield "a section too short", array("raw", (10,), section(bytes(39))), "expected 40 bytes"
    yield "a section too long", array("raw", (10,), section(bytes(41))), "expected 40 bytes"
    yield "no section", array("raw", (10,)), "section 'values'"
    yield "a byte left over", array("raw", (10,), TEN_FLOATS, b"\x00"), "left over"
    yield "a section left over", array("raw", (10,), TEN_FLOATS, TEN_FLOATS), "left over"
