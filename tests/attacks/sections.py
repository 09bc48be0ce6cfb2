"""Sections that contradict each other, the header, or themselves: positions, norms, ranges, compressed bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import zstandard

from attacks.build import Bits, array, attack, section
from perbit.coding.bits import varint

Frames = Iterator[tuple[str, bytes, str]]
NAN, INF = float("nan"), float("inf")
N = 20


def _sparse(coder: str, count: int, positions: bytes, n: int = N, values: int | None = None) -> bytes:
    kept = section(bytes(4 * (min(count, n) if values is None else values)))
    return array(f"topk(k=3, positions={coder})", (n,), varint(count), section(positions), kept)


def _u32(*positions: int) -> bytes:
    return np.array(positions, "<u4").tobytes()


@attack
def counts() -> Frames:
    for coder in ("raw32", "bitmap", "golomb"):
        yield f"{coder}: more than there are", _sparse(coder, N + 1, bytes(100)), "number of kept values"
        yield f"{coder}: 2^62", _sparse(coder, 1 << 62, bytes(100)), "number of kept values"
        yield f"{coder}: positions without values", _sparse(coder, 2, bytes(8), values=1), "expected 8 bytes"
    yield "two positions, one value", _sparse("raw32", 2, _u32(1, 2), values=1), "expected 8 bytes"
    yield "two positions, three values", _sparse("raw32", 2, _u32(1, 2), values=3), "expected 8 bytes"
    yield "one of nothing", _sparse("raw32", 1, _u32(0), n=0, values=1), "number of kept values"


@attack
def raw32_positions() -> Frames:
    yield "descending", _sparse("raw32", 3, _u32(5, 4, 6)), "must ascend"
    yield "equal", _sparse("raw32", 3, _u32(5, 5, 6)), "must ascend"
    yield "at the end", _sparse("raw32", 3, _u32(1, 2, N)), "must ascend"
    yield "far out", _sparse("raw32", 3, _u32(1, 2, 2**32 - 1)), "must ascend"
    yield "far out in the middle", _sparse("raw32", 3, _u32(1, 2**32 - 1, 3)), "must ascend"
    yield "too few bytes", _sparse("raw32", 3, bytes(11)), "need 12 bytes"
    yield "too many bytes", _sparse("raw32", 3, bytes(13)), "need 12 bytes"


@attack
def bitmap_positions() -> Frames:
    yield "too short", _sparse("bitmap", 3, bytes(2)), "need 3 bytes"
    yield "too long", _sparse("bitmap", 3, bytes(4)), "need 3 bytes"
    yield "too few", _sparse("bitmap", 3, b"\x03\x00\x00"), "expected 3 positions"
    yield "too many", _sparse("bitmap", 3, b"\xff\x00\x00"), "expected 3 positions"
    yield "behind the end", _sparse("bitmap", 3, b"\x03\x00\x80"), "expected 3 positions"


@attack
def golomb_positions() -> Frames:
    yield "no parameter", _sparse("golomb", 3, b""), "parameter is missing"
    yield "parameter 32", _sparse("golomb", 3, b"\x20" + bytes(40)), "above 31"
    yield "parameter 255", _sparse("golomb", 3, b"\xff" + bytes(40)), "above 31"
    yield "no data", _sparse("golomb", 3, b"\x00"), "golomb"
    yield "zeros for ever", _sparse("golomb", 3, b"\x00" + bytes(1000)), "golomb"
    yield "one past the end", _sparse("golomb", 1, b"\x00" + Bits().put(1 << N, N + 1).bytes()), "outside"
    late = Bits().put(0b11, 2).put(1 << (N - 2), N - 1)
    yield "the last one past the end", _sparse("golomb", 3, b"\x00" + late.bytes()), "outside"
    giant = Bits().put(0x7FFFFFFF, 31).put(1 << 5000, 5001)
    yield "b = 31 and a giant quotient", _sparse("golomb", 1, b"\x1f" + giant.bytes()), "outside"
    wrap = Bits().put(0, 31).put(1 << 2, 3)
    yield "b = 31 and 2^32", _sparse("golomb", 1, b"\x1f" + wrap.bytes()), "outside"
    yield "a byte too many", _sparse("golomb", 2, b"\x00\x03\x00"), "golomb"
    yield "bits behind the last", _sparse("golomb", 2, b"\x00\x07"), "golomb"
    yield "a word cut short", _sparse("golomb", 3, b"\x00\x03"), "golomb"
    yield "more positions than bits", _sparse("golomb", N, b"\x03\xff\xff"), "golomb"
    yield "positions for none", _sparse("golomb", 0, b"\x00\x01"), "golomb"


@attack
def counted_positions() -> Frames:
    yield "no counts", _sparse("counted(8)", 3, b""), "truncated"
    yield "more in a chunk than it holds", _sparse("counted(8)", 18, b"\x0a"), "above the limit"
    yield "too many for the last chunk", _sparse("counted(8)", 7, b"\x02"), "more positions than values"
    yield "fewer in all", _sparse("counted(8)", 3, b"\x03"), "do not hold 3"
    yield "counts of nothing", _sparse("counted(8)", 0, b"\x02"), "do not hold 0"
    yield "counts cut short", _sparse("counted(8)", 3, b"\x00\x05\x01"), "truncated"
    yield "counts of another sum", _sparse("counted(8)", 3, b"\x00\x02\xff\xff"), "counted"
    yield "a byte too many", _sparse("counted(8)", 3, b"\x02\x00\x00"), "wrong length|wrong byte"


@attack
def random_positions_of_randk() -> Frames:
    for seed in (b"", b"123", b"12345"):
        yield f"{len(seed)} bytes of seed", array("randk(k=3)", (N,), section(seed), section(bytes(12))), "seed has"
    yield "too few values", array("randk(k=3)", (N,), section(b"seed"), section(bytes(8))), "expected 12 bytes"
    yield "more than there are", array("randk(k=30)", (N,), section(b"seed"), section(bytes(120))), "expected 80 bytes"


@attack
def ranges_of_uniform() -> Frames:
    packed = section(bytes(10))
    for low, high in [(NAN, 1.0), (0.0, NAN), (-INF, 0.0), (0.0, INF), (1.0, 0.0), (NAN, NAN)]:
        yield f"{low} to {high}", array("uniform(4)", (N,), section(struct.pack("<ff", low, high)), packed), "no range"
    for n_bytes in (0, 7, 9, 16):
        yield f"{n_bytes} bytes", array("uniform(4)", (N,), section(bytes(n_bytes)), packed), "instead of 8"


@attack
def norms_of_qsgd() -> Frames:
    packed = section(bytes(5))
    for norm in (NAN, INF, -INF, -1.0):
        yield f"{norm}", array("qsgd(1)", (N,), section(struct.pack("<f", norm)), packed), "negative or not finite"
    for count in (0, 2, 3):
        yield f"{count} instead of one", array("qsgd(1)", (N,), section(bytes(4 * count)), packed), "1 norms need"
    yield "one of two", array("qsgd(1, bucket=10)", (N,), section(bytes(4)), packed), "2 norms need"
    late = struct.pack("<ff", 1.0, NAN)
    yield "the second of two", array("qsgd(1, bucket=10)", (N,), section(late), packed), "not finite"


@attack
def deflate_streams() -> Frames:
    def frame(data: bytes) -> bytes:
        return array("raw | deflate", (N,), section(data))

    def deflated(n_bytes: int) -> bytes:
        coder = zlib.compressobj(9, zlib.DEFLATED, -15)
        return coder.compress(bytes(n_bytes)) + coder.flush()

    good = deflated(4 * N)
    yield "empty", frame(b""), "deflate"
    yield "garbage", frame(b"\xff" * 20), "deflate"
    yield "cut short", frame(good[:-1]), "deflate"
    yield "bytes behind", frame(good + b"\x00"), "deflate"
    yield "a byte too few", frame(deflated(4 * N - 1)), "expected 80 bytes"
    yield "a byte too many", frame(deflated(4 * N + 1)), "expected 80 bytes|deflate"
    yield "a bomb", frame(deflated(1 << 26)), "expected 80 bytes|deflate"
    yield "with zlib's header", frame(zlib.compress(bytes(4 * N))), "deflate"


@attack
def zstd_streams() -> Frames:
    def frame(data: bytes) -> bytes:
        return array("raw | zstd", (N,), section(data))

    def packed(n_bytes: int, **options: bool) -> bytes:
        return zstandard.ZstdCompressor(level=19, **options).compress(bytes(n_bytes))

    good = packed(4 * N)
    yield "empty", frame(b""), "zstd"
    yield "garbage", frame(b"\xff" * 20), "zstd"
    yield "cut short", frame(good[:-1]), "zstd"
    yield "bytes behind", frame(good + b"\x00"), "zstd"
    yield "two frames", frame(packed(2 * N) * 2), "zstd"
    yield "no content size", frame(packed(4 * N, write_content_size=False)), "does not say its size"
    yield "a byte too few", frame(packed(4 * N - 1)), "claims 79"
    yield "a bomb", frame(packed(1 << 26)), "claims 67108864"
    skippable = section(b"\x50\x2a\x4d\x18" + (1 << 31).to_bytes(4, "little") + b"skip")
    yield "a skippable frame", array("raw | zstd", (0,), skippable), "no zstd frame"
    bomb = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(range(256)) * 2000))
    size_at = bomb.index((512000).to_bytes(4, "little"))
    bomb[size_at : size_at + 4] = (4 * N).to_bytes(4, "little")
    yield "a bomb that claims to be small", frame(bytes(bomb)), "zstd"
    lying = bytearray(good)
    lying[lying.index(4 * N)] = 4 * N + 4
    longer = array("raw | zstd", (N + 1,), section(bytes(lying)))
    yield "less than it claims", longer, "zstd|expected 84"
