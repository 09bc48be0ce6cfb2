"""General-purpose compressors, for comparison and for structured bytes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import zstandard

from perbit.bits import Piece
from perbit.codec import ByteCoder
from perbit.errors import DecodeError
from perbit.registry import register


@register
@dataclass(frozen=True)
class Deflate(ByteCoder):
    """zlib's Deflate (LZ77 + Huffman)."""

    level: int = 6

    name = "deflate"
    wire_id = 12
    examples = ("raw | deflate", "fp16 | deflate(9)", "uniform(3) | pack | deflate")

    def __post_init__(self) -> None:
        if not 0 <= self.level <= 9:
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
    """Zstandard."""

    level: int = 3

    name = "zstd"
    wire_id = 13
    examples = ("raw | zstd", "bf16 | zstd(1)", "uniform(4) | pack | zstd")

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 22:
            raise ValueError(f"level must be 1 to 22, got {self.level}")

    def encode(self, data: Piece) -> bytes:
        return zstandard.ZstdCompressor(level=self.level).compress(data)

    def decode(self, data: Piece, n_bytes: int) -> bytes:
        try:
            claimed = zstandard.frame_content_size(data)
            if claimed != n_bytes:  # checked first: the size in the stream decides how much is allocated
                raise DecodeError(f"zstd: expected {n_bytes} bytes, the stream claims {claimed}")
            decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27)
            return decoder.decompress(data, max_output_size=n_bytes, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise DecodeError(f"zstd: {error}") from error
