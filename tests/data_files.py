"""Small stand-ins for data sets, as files in the real formats, and a fixture that lets them pass for the real sets."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib

import numpy as np
import pytest

from perbit_papers.data import packages, store
from perbit_papers.data.png import AVERAGE, NONE, PAETH, SUB, UP

RNG = np.random.default_rng(7)


def png(pixels: np.ndarray, filters: list[int]) -> bytes:
    """Write a PNG by the definition of its filters: an encoder independent of the reader under test."""
    height, width, channels = pixels.shape
    padded = np.zeros((height + 1, width + 1, channels), int)
    padded[1:, 1:] = pixels
    x, left, up, corner = padded[1:, 1:], padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    estimate = left + up - corner
    near = np.argmin(np.abs(estimate - np.stack([left, up, corner])), axis=0)
    guesses = {NONE: 0 * x, SUB: left, UP: up, AVERAGE: (left + up) // 2, PAETH: np.choose(near, [left, up, corner])}
    rows = [
        bytes([kind]) + ((x - guesses[kind])[row] % 256).astype(np.uint8).tobytes() for row, kind in enumerate(filters)
    ]
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    body = zlib.compress(b"".join(rows))
    half = len(body) // 2  # two IDAT chunks, as large pictures have
    chunks = [(b"IHDR", header), (b"IDAT", body[:half]), (b"IDAT", body[half:]), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n"
    for kind, part in chunks:
        data += struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
    return data


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def tar(members: dict[str, bytes], mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def deb(members: dict[str, bytes]) -> bytes:
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": tar(members, "w:xz")}
    data = b"!<arch>\n"
    for name, body in parts.items():
        data += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode() + body + b"\n" * (len(body) % 2)
    return data


INTER = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n7\t30\t4\t100\n3\t10\t5\t50\n7\t10\t1\t90\n3\t40\t2\t60\n"


def mnist_files(n: int = 12) -> dict[str, bytes]:
    images = RNG.integers(0, 256, (n, 28, 28), np.uint8)
    labels = np.arange(n, dtype=np.uint8) % 10
    return {f"{part}-{kind}": idx(array) for part in ("train", "t10k")
            for kind, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels))}  # fmt: skip


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small stand-ins are not the real sets: their checksums are not asked for."""
    monkeypatch.setattr(store, "CHECKSUMS", {})
    monkeypatch.setattr(packages.Package, "check", lambda self, archive: None)
