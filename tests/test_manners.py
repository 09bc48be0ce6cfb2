"""Small things a newcomer trips over: what codecs take, rules that match nothing, seeds twice, folders that hold runs."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import perbit
from perbit.cli import main
from perbit.coding import registry
from perbit.coding.listing import arguments
from perbit.sim.compare.config import ConfigError, parse

TASK = "[task]\nclients = 2\nrounds = 1\ntrain_samples = 60\ntest_samples = 20\n"
METHOD = '[[methods]]\nname = "float32"\n'
OWN_CODECS = {name: codec for name, codec in registry.classes().items() if codec.wire_id}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", OWN_CODECS)
def test_every_parameter_of_a_codec_is_explained_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cls = OWN_CODECS[name]
    assert list(arguments(cls)) == [field.name for field in fields(cls)]  # type: ignore[arg-type]
    assert main(["codecs", name]) == 0
    out = capsys.readouterr().out
    assert all(f"    {field.name}: " in out for field in fields(cls))  # type: ignore[arg-type]
    assert f"examples: {cls.examples[0]}" in out


def test_two_number_formats_in_a_row_are_one_too_many() -> None:
    with pytest.raises(perbit.SpecError, match="raw and raw both turn floats into bytes; leave one of them out"):
        perbit.codec("raw | raw")


def test_a_rule_that_matches_nothing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("m.npz", w=np.ones((40, 40), np.float32))
    assert main(["encode", "m.npz", "raw", "--rule", "conv*=fp16"]) == 0
    assert capsys.readouterr().err == "perbit: the rule 'conv*' matches no tensor\n"
    Path("c.toml").write_text(f'{TASK}{METHOD}rules = {{ "conv*" = "fp16" }}\n')
    assert main(["compare", "c.toml"]) == 2
    assert "the rule 'conv*' matches no tensor of the model; it has 1.weight" in capsys.readouterr().err


def test_a_seed_counts_once() -> None:
    with pytest.raises(ConfigError, match="seeds must be different"):
        parse(f"seeds = [0, 0]\n{METHOD}")


def test_errors_name_options_not_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.ones(500, np.float32))
    assert main(["encode", "x.npy", "raw"]) == 0
    assert main(["decode", "x.pbit", "--max-values", "10", "-o", "y.npy"]) == 2
    assert "pass --max-values 500 to allow it" in capsys.readouterr().err


def test_choices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    out = capsys.readouterr().out
    assert "--optimiser {sgd,adam}" in out
    assert "--schedule {constant,cosine}" in out
    assert "--server {sgd,adam}" in out


@pytest.mark.parametrize("command", [["compare", "c.toml", "--no-report"], ["train", "--task", "c.toml"]])
def test_runs_are_not_discarded_unasked(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.toml").write_text(TASK + METHOD)
    command = [*command, "--processes", "1", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    before = {path: path.read_bytes() for path in Path("perbit-runs").rglob("*") if path.is_file()}
    assert main(command) == 2
    assert "holds runs already: go on with --resume, discard them with --fresh" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in Path("perbit-runs").rglob("*") if path.is_file()}
    for option in ("--resume", "--fresh"):
        assert main([*command, option]) == 0
        assert json.loads(capsys.readouterr().out) == first
