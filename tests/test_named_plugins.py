"""Commands, data sets, models and comparisons of other packages: found by name, and one that is broken breaks no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from perbit import _moved, plugins
from perbit.cli import main
from perbit.errors import PerbitError
from perbit.sim import models
from perbit.sim.compare import config
from perbit.sim.compare.config import ConfigError
from perbit.sim.data import DataError, Info, load
from perbit.sim.models import ModelError

TABLE = Info("table", "tabular", (3,), 2)
HINT = "pip install perbit-papers"
OFFERING = """
import numpy as np
from perbit.sim.data import Dataset, Info, Split

def add_options(parser):
    parser.add_argument("name")

def run(options):
    print(f"hello {options.name}")
    return 0

def rows(root):
    split = Split(np.zeros((4, 3), np.float32), np.arange(4) % 2)
    return Dataset(Info(f"rows of {root}", "tabular", (3,), 2), split, split)
"""
COMPARISON = '[task]\nclients = 3\n[[methods]]\nname = "float32"\n'


def offer(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str, str]) -> None:
    """These (group, name, value) and nothing else are installed."""
    made = EntryPoints(EntryPoint(name, value, group) for group, name, value in entries)
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: made.select(**wanted))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that offers one good and one broken thing of every kind, and a data set called like perbit's own."""
    folder = tmp_path / "offering"
    folder.mkdir()
    (folder / "__init__.py").write_text(OFFERING)
    (folder / "broken.py").write_text("raise RuntimeError('out of order')\n")
    (folder / "three.toml").write_text(COMPARISON)
    monkeypatch.syspath_prepend(tmp_path)
    good = {"commands": "offering", "data": "offering:rows", "models": "perbit.sim.models.simple:MLP"}
    offer(
        monkeypatch,
        *((f"perbit.{kind}", "good", value) for kind, value in good.items()),
        ("perbit.comparisons", "three", "offering"),
        ("perbit.data", "digits", "offering:rows"),
        *((f"perbit.{kind}", "bad", "offering.broken") for kind in (*good, "comparisons")),
    )
    yield
    sys.modules.pop("offering", None)


@pytest.mark.usefixtures("installed")
def test_what_is_offered_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["good", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert load("good", "here").info.name == "rows of here"
    assert models.build("good", TABLE).training
    assert config.load("three").task.clients == 3


@pytest.mark.usefixtures("installed")
def test_what_is_broken_is_named_and_the_rest_works(capsys: pytest.CaptureFixture[str]) -> None:
    for ask in (load, config.load, lambda name: models.build(name, TABLE)):
        with pytest.raises(PerbitError, match=r"bad \(offering\.broken\) cannot be loaded: out of order"):
            ask("bad")
    assert main(["bad"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "bad" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_perbits_own_names_come_first() -> None:
    assert load("digits").info.name == "digits"


def test_perbits_own_names_need_no_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def search(**_: str) -> EntryPoints:
        raise AssertionError("somebody looked for plug-ins")

    monkeypatch.setattr(plugins, "entry_points", search)
    assert main(["codecs"]) == 0
    assert load("digits").n_classes == 10
    assert models.build("small-cnn", load("digits").info).training
    assert config.load("demo").task.data == "digits"
    (tmp_path / "my.toml").write_text(COMPARISON)
    assert config.load(str(tmp_path / "my.toml")).task.clients == 3
    with pytest.raises(SystemExit, match="0"):
        main(["compare", "demo", "--help"])
    capsys.readouterr()


def test_without_the_papers_their_names_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(monkeypatch, ("perbit.data", "mine", "nowhere:mine"))
    for command in ("data", "convex"):
        assert main([command, "--help"]) == 2
        assert (
            capsys.readouterr().err
            == f"perbit: there is no command {command} here; more commands come with perbit-papers: {HINT}\n"
        )
    (tmp_path / "my.svm").write_text("1 1:2\n")
    for name in ("cifar10", str(tmp_path / "my.svm")):
        with pytest.raises(DataError, match=HINT):
            load(name)
    with pytest.raises(ModelError, match=HINT):
        models.build("resnet20", TABLE)
    with pytest.raises(ConfigError, match=HINT):
        config.load("cnn")
    assert main(["compair", "demo"]) == 2
    assert "did you mean compare?" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["perbit.sim.convex", "perbit.sim.gradients"])
def test_modules_that_went_to_the_papers_say_so(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=module.replace("perbit.sim", "it is perbit_papers")):
        _moved._Moved().find_spec(module, None)
