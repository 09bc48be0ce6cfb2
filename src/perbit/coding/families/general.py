"""General-purpose compressors, for comparison and for structured bytes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import zstandard

from perbit.coding.bits import Piece
from perbit.coding.codec import ByteCoder
from perbit.coding.registry import register
from perbit.errors import DecodeError


@register
@dataclass(frozen=True)
class Deflate(ByteCoder):
    """zlib's Deflate (LZ77 + Huffman).

    Args:
        level: 0 to 9: larger is slower and smaller.
    """

    level: int = 6

    name = "deflate"
    wire_id = 12
    examples = ("raw | deflate", "fp16 | deflate(9)", "uniform(3) | pack | deflate")

    def __post_init__(self) -> None:
        if type(self.level) is not int or not 0 <= self.level <= 9:
            raise ValueError(f"level must be 0 to 9, got {self.level}")

    def encode(self, data: Piece) -> bytes:
        coder = zlib.compressobj(self.level, zlib.DEFLATED, -15)
        return coder.compress(data) + coder.flush()

    def decode(self, data: Piece, n_bytes: int) -> bytes:
        decoder = zlib.decompressobj(-15)
        try:
            out = decoder.decompress(data, n_bytes + 1)  # one more than expected shows a stream that lies
        except zlib.error as error:
            raise DecodeError(f"deflate: {error}") from error
        if decoder.unused_data or not (decoder.eof or len(out) > n_bytes):
            raise DecodeError("deflate: the stream does not end where it should")
        return out


@register
@dataclass(frozen=True)
class Zstd(ByteCoder):
    """Zstandard.

    Args:
        level: 1 to 22: larger is slower and smaller.
    """

    level: int = 3

    name = "zstd"
    wire_id = 13
    examples = ("raw | zstd", "bf16 | zstd(1)", "uniform(4) | pack | zstd")

    def __post_init__(self) -> None:
        if type(self.level) is not int or not 1 <= self.level <= 22:
            raise ValueError(f"level must be 1 to 22, got {self.level}")

    def encode(self, data: Piece) -> bytes:
        return zstandard.ZstdCompressor(level=self.level).compress(data)

    def decode(self, data: Piece, n_bytes: int) -> bytes:
        claimed = zstd_size(data)
        if claimed != n_bytes:
            raise DecodeError(f"zstd: expected {n_bytes} bytes, the stream claims {claimed}")
        return unzstd(data)


def zstd_size(data: Piece) -> int:
    """How many bytes a zstd frame says it holds. To be checked first: so much is allocated, whatever the frame holds."""
    if data[:4] != zstandard.FRAME_HEADER:  # nor a skippable frame, which has a size of another kind
        raise DecodeError("zstd: this is no zstd frame")
    try:
        claimed = zstandard.get_frame_parameters(data).content_size
    except zstandard.ZstdError as error:
        raise DecodeError(f"zstd: {error}") from error
    if claimed == zstandard.CONTENTSIZE_UNKNOWN:
        raise DecodeError("zstd: the stream does not say its size")
    return claimed


def unzstd(data: Piece) -> bytes:
    """The bytes of one zstd frame whose size has been checked."""
    try:
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DecodeError(f"zstd: {error}") from error
