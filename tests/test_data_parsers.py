"""Data sets: every parser on a small file in the real format. No network."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from data_files import INTER, RNG, deb, idx, png, tar
from perbit.sim.data import DataError
from perbit_papers.data.archives import read_directory, read_members
from perbit_papers.data.libsvm import read_libsvm
from perbit_papers.data.png import AVERAGE, NONE, PAETH, SUB, UP, read_png
from perbit_papers.data.recipes import read_idx, read_inter


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_with_every_filter(channels: int) -> None:
    pixels = RNG.integers(0, 256, (25, 9, channels), np.uint8)
    filters = [NONE, SUB, UP, AVERAGE, PAETH] * 5
    assert np.array_equal(read_png(png(pixels, filters)), pixels)
    assert np.array_equal(read_png(png(pixels, filters[::-1])), pixels)


def test_png_agrees_with_an_independent_reader() -> None:
    from PIL import Image

    pixels = RNG.integers(0, 256, (16, 11, 3), np.uint8)
    smooth = np.cumsum(pixels, axis=1, dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(smooth).save(data, "png")
    assert np.array_equal(read_png(data.getvalue()), smooth)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(pixels, [PAETH] * 16)))), pixels)


def test_damaged_png() -> None:
    data = png(RNG.integers(0, 256, (4, 4, 3), np.uint8), [NONE] * 4)
    for bad in (
        b"GIF89a",
        data[:40],
        data[:-20],
        data[:50] + b"\xff" + data[51:],
        png(np.zeros((1, 1, 3), int), [NONE])[:33],
    ):
        with pytest.raises(DataError, match="PNG"):
            read_png(bad)


def test_idx_plain_and_gzipped() -> None:
    array = RNG.integers(0, 256, (3, 5, 2), np.uint8)
    assert np.array_equal(read_idx(idx(array)), array)
    assert np.array_equal(read_idx(gzip.compress(idx(array))), array)
    with pytest.raises(DataError, match="should hold"):
        read_idx(idx(array)[:-1])
    with pytest.raises(DataError, match="does not start"):
        read_idx(b"hello world")


def test_ratings_table() -> None:
    table = read_inter(INTER)
    assert table["user"].tolist() == [1, 0, 1, 0]
    assert table["item"].tolist() == [1, 0, 0, 2]
    assert table["rating"].tolist() == [4, 5, 1, 2]
    with pytest.raises(DataError, match="no column 'rating'"):
        read_inter(INTER.replace(b"rating", b"stars"))


def test_libsvm_text(tmp_path: Path) -> None:
    (tmp_path / "tiny").write_text("+1 1:0.5 3:2 # a comment\n\n-1 2:1e-1\n")
    x, y = read_libsvm(tmp_path / "tiny")
    assert y.tolist() == [1, -1]
    assert x.tolist() == [[0.5, 0, 2], [0, np.float32(0.1), 0]]
    for bad in ("1 0:3", "1 2", "x 1:1", "1 1:y"):
        (tmp_path / "bad").write_text(f"1 1:1\n{bad}\n")
        with pytest.raises(DataError, match="line 2 of"):
            read_libsvm(tmp_path / "bad")


@pytest.mark.parametrize(("suffix", "mode"), [(".tgz", "w:gz"), (".whl", ""), (".deb", "")])
def test_archives(tmp_path: Path, suffix: str, mode: str) -> None:
    members = {"package/data/a.bin": b"A" * 1001, "package/b.bin": b"B", "package/other": b"no"}
    path = tmp_path / f"x{suffix}"
    if suffix == ".whl":
        with zipfile.ZipFile(path, "w") as wheel:
            for name, data in members.items():
                wheel.writestr(name, data)
    else:
        path.write_bytes(deb(members) if suffix == ".deb" else tar(members, mode))
    assert read_members(path, ["a.bin", "b.bin"]) == {"a.bin": b"A" * 1001, "b.bin": b"B"}
    with pytest.raises(DataError, match=r"does not hold c\.bin"):
        read_members(path, ["a.bin", "c.bin"])
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(DataError, match="is damaged"):
        read_members(path, ["a.bin"])


def test_directory_takes_plain_for_gzipped(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"1")
    assert read_directory(tmp_path, ["a.gz"]) == {"a.gz": b"1"}
