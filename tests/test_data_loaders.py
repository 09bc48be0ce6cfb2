"""Data sets: the loaders on small files in the place and form of the real sets. No network."""

# ruff: noqa: F401 - the fixture is imported to be found by its name

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from data_files import RNG, mnist_files, png, unpinned
from perbit import files, plugins
from perbit.errors import PerbitError
from perbit.sim.data import DataError, Split, load
from perbit_papers.data import recipes, store
from perbit_papers.data.png import PAETH, UP


def test_digits_are_bundled() -> None:
    digits = load("digits")
    assert (len(digits.train), len(digits.test), digits.n_classes, digits.info.kind) == (1438, 359, 10, "image")
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
    for name in set(plugins.offered("data set")) - {"libsvm"}:
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
