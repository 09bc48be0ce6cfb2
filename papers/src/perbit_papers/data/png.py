"""A PNG reader for 8-bit grey and colour pictures in numpy and zlib alone: data sets are packed as PNG, and lossless needs no image library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perbit.sim.data import DataError

Bytes = NDArray[np.uint8]
SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 6: 4}  # PNG colour type: grey, RGB, RGBA
NONE, SUB, UP, AVERAGE, PAETH = range(5)


def read_png(data: bytes) -> Bytes:
    """The picture as (height, width, channels)."""
    try:
        return _decode(data)
    except (struct.error, zlib.error, KeyError, ValueError) as error:
        raise DataError(f"this PNG cannot be read: {error}") from error


def _decode(data: bytes) -> Bytes:
    chunks = list(_chunks(data))
    width, height, depth, colour, *_, interlaced = struct.unpack(">IIBBBBB", dict(chunks)[b"IHDR"])
    if depth != 8 or interlaced or colour not in CHANNELS:
        raise ValueError("only 8-bit grey, RGB and RGBA without interlacing are supported")
    raw = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    rows = np.frombuffer(raw, np.uint8).reshape(height, 1 + width * CHANNELS[colour])
    if rows[:, 0].max(initial=0) > PAETH:
        raise ValueError("unknown row filter")
    return _unfilter(rows[:, 0], rows[:, 1:].reshape(height, width, CHANNELS[colour]))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(SIGNATURE):
        raise ValueError("it is not a PNG file")
    at = len(SIGNATURE)
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(kind + body) != checksum:
            raise ValueError("a chunk is damaged")
        yield kind, body
        at += 12 + length


def _unfilter(filters: Bytes, pixels: Bytes) -> Bytes:
    """Undo the row filters. NONE, SUB and UP act on whole rows at once; only AVERAGE and PAETH must go pixel by pixel."""
    out = np.empty_like(pixels)
    above = np.zeros_like(pixels[0])
    for row, kind in enumerate(filters):
        line = pixels[row]
        if kind == NONE:
            out[row] = line
        elif kind == SUB:
            out[row] = np.cumsum(line, axis=0, dtype=np.uint8)  # wraps at 256, as PNG does
        elif kind == UP:
            out[row] = line + above
        else:
            out[row] = _sequential(line.astype(int).tolist(), above.astype(int).tolist(), kind == PAETH)
        above = out[row]
    return out


def _sequential(line: list[list[int]], above: list[list[int]], is_paeth: bool) -> list[list[int]]:
    channels = range(len(line[0]))
    left = corner = [0] * len(channels)
    out = []
    for value, up in zip(line, above, strict=True):
        guess = [_paeth(left[c], up[c], corner[c]) if is_paeth else (left[c] + up[c]) // 2 for c in channels]
        left, corner = [(value[c] + guess[c]) % 256 for c in channels], up
        out.append(left)
    return out


def _paeth(left: int, up: int, corner: int) -> int:
    """The neighbour closest to left + up - corner; ties go to left, then up."""
    estimate = left + up - corner
    return min((left, up, corner), key=lambda value: abs(estimate - value))
