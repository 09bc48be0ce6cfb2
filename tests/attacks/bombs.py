"""Small frames that would like much memory or time."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import zstandard

from attacks.build import MESSAGE, PACKED, array, attack, directory, message, section, spec, tensor
from perbit.coding.bits import varint

Frames = Iterator[tuple[str, bytes, str]]
RAW = spec("raw")


def _packed(contents: bytes) -> bytes:
    return message(zstandard.ZstdCompressor(level=3).compress(contents), flags=MESSAGE | PACKED)


@attack
def directory_bombs() -> Frames:
    for many in (1 << 16, 1 << 19, 1 << 21):
        yield f"{many} specs", _packed(varint(many) + RAW * many + varint(0)), "spec|truncated|max_operations"
    long = spec(" | ".join(["topk(0.5)"] * 16))
    yield "a hundred thousand long specs", _packed(varint(100_000) + long * 100_000 + varint(0)), "spec"
    names = b"".join(b"\x04" + i.to_bytes(4, "little") + b"\x00\x01\x00\x00" for i in range(1 << 19))
    yield "half a million tensors", _packed(varint(1) + RAW + varint(1 << 19) + names), "tensors"
    yield "a name of four million bytes", _packed(directory([RAW], [tensor(b"\x01" * (1 << 22), (0,))])), "name"
    yield "a directory of zeros", _packed(bytes(1 << 23)), "left over"
    yield "a byte more than allowed", _packed(bytes((1 << 23) + 1)), "directory claims"
    yield "a directory of 2^40 bytes", _liar(1 << 40), "directory claims"
    yield "a directory that says 100 bytes", _liar(100), "zstd"


def _liar(claimed: int) -> bytes:
    """A packed directory whose content size is not that of its content."""
    packed = bytearray(zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(1 << 24)))
    packed[4] |= 0b11 << 6  # the content size as eight bytes, after the window
    return message(bytes(packed[:6] + struct.pack("<Q", claimed) + packed[6:]), flags=MESSAGE | PACKED)


@attack
def claims_without_data() -> Frames:
    """Shapes within the limit, but hardly a byte of data: nothing may be allocated for them."""
    n = 1 << 20
    yield "raw", array("raw", (n,), section(b"")), "expected 4194304 bytes"
    yield "fp16", array("fp16", (n,), section(b"")), "expected 2097152 bytes"
    yield "zstd", array("raw | zstd", (n,), section(b"")), "zstd"
    yield "topk", array("topk(0.5)", (n,), varint(n), section(b"\x00"), section(b"")), "expected 4194304"
    yield (
        "a topk of topks",
        array(" | ".join(["topk(1.0)"] * 16), (n,), varint(n), section(b"\x00")),
        "number of kept values",
    )
    seeds = [section(b"seed")] * 16
    yield "a randk of randks", array(" | ".join(["randk(1.0)"] * 16), (n,), *seeds, section(b"")), "operations or more"
    some = section(struct.pack("<ff", 0.0, 1.0))
    yield "rans", array("uniform(4) | rans", (n,), some, section(b"\x02")), "table"
    yield "huffman", array("uniform(12) | huffman", (n,), some, section(b"\x01")), "packed symbols"
    yield "qsgd", array("qsgd(1, bucket=1)", (n,), section(b"")), "norms need"
