"""Small things a newcomer trips over: what codecs take, rules that match nothing, seeds twice, folders that hold runs."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import perbit
from perbit import cli, files
from perbit.cli import main
from perbit.coding import registry
from perbit.coding.listing import arguments
from perbit.commands.progress import Display
from perbit.errors import SpecError
from perbit.plan.budget import fit_budget
from perbit.sim.compare import pool
from perbit.sim.compare.config import ConfigError, parse
from perbit.sim.compare.pool import Report
from perbit.sim.federated.settings import Task

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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "{a = " * 5000 + "1" + "}" * 5000, "nested too deeply"),
        ("seeds = [" + "9" * 5000 + "]", "too many digits"),
        (f'seeds = [{1 << 63}]\n[[methods]]\nname = "a"', "below 2^63"),
    ],
    ids=["arrays", "tables", "digits", "seed"],
)
def test_a_hostile_comparison_is_one_sentence(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("hostile.toml").write_text(text)
    assert main(["compare", "hostile.toml"]) != 0
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.startswith("perbit: hostile.toml")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("seed", ["-1", str(1 << 63)])
@pytest.mark.parametrize("command", [["train"], ["tune"], ["compare"]], ids=lambda command: command[0])
def test_a_seed_that_cannot_be_is_refused(command: list[str], seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = "--seeds" if command == ["compare"] else "--seed"
    with pytest.raises(SystemExit):
        main([*command, f"{option}={seed}"])
    assert "below 2^63" in capsys.readouterr().err


def test_a_number_of_thousands_of_digits_is_no_spec() -> None:
    with pytest.raises(perbit.SpecError, match="at most 100 characters"):
        perbit.encode(np.ones(4, np.float32), f"qsgd({'9' * 5000})")


def test_fresh_discards_all_runs_before_the_first_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run that is stopped early would leave some of the old ones, and --resume would take them for its own."""
    Path("own.toml").write_text(TASK + METHOD + METHOD.replace("float32", "again"))
    assert main(["compare", "own.toml", "--processes", "1", "--no-report"]) == 0

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perbit.sim.compare.pool.run_all", stopped)
    assert main(["compare", "own.toml", "--fresh", "--no-report"]) == 130
    assert not list(Path("perbit-runs/own").glob("*/result.json"))


@pytest.mark.parametrize("spec", ["rd(bits=?)", "rd(db=?)"])
def test_a_parameter_that_no_budget_can_search_is_named(spec: str) -> None:
    with pytest.raises(
        SpecError, match=r"a budget cannot search (bits|db) in .*; leave another parameter open, as in rd\(\?\)"
    ):
        fit_budget({"w": np.ones((64, 64), np.float32)}, spec, n_bits=4000)


def test_progress_shows_a_metric_as_it_is() -> None:
    report = Report(0, 2, 4, -1.25, 1000)
    for task, shown in ((Task(metric="mine:loss", rounds=4), "-1.25"), (Task(rounds=4), "-125.0%")):
        display = Display(["x"], task, quiet=True)
        display.rows[0].report = report
        assert display.cells(display.rows[0], 0.0)[:2] == ("2/4", shown)


def test_the_metadata_of_a_file_are_no_tensor_of_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, frame = str(tmp_path / "m.safetensors"), str(tmp_path / "m.pbit")
    tensors = {"w": np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)}
    files.write_tensors(Path(model), {**tensors, files.METADATA: files.as_metadata({"made": "by hand"})})
    assert main(["encode", model, "uniform(4) | rans", "-o", frame]) == 0
    for command in (["inspect", frame], ["plan", model, "uniform(4) | rans"], ["fit", model]):
        capsys.readouterr()
        assert main(command) == 0
        said = capsys.readouterr().out
        assert "__metadata__" not in said
        assert ("(metadata of the file)" in said) == (command[0] != "fit")
        assert "nothing to fit" not in said


def test_without_a_report_none_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.toml").write_text(f"{TASK}{METHOD}")
    assert main(["compare", "c.toml", "--no-report", "--processes", "1"]) == 0
    said = capsys.readouterr().out
    assert "Report:" not in said
    assert said.endswith("Results: perbit-runs/c/results.json\n")


def test_progress_counts_what_is_sent_up() -> None:
    """A budget is one of the way up, so both count the same bytes."""
    seen: list[Report] = []
    comparison = parse(f"{TASK}{METHOD}")
    job = pool.Job(comparison.task, comparison.methods[0], 0, Path("run"))
    outcome = pool.run_job(0, job, seen.append)
    assert seen[-1].n_bytes == outcome["bytes_up"] < outcome["bytes_up"] + outcome["bytes_down"]


def test_the_head_of_rd_stands_above_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.random.default_rng(0).normal(size=6000).astype(np.float32))
    assert main(["rd", "x.npy", "--specs", "topk(?) | fp16", "uniform(?) | rans"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    head = next(i for i, line in enumerate(lines) if line.startswith("error in dB"))
    ends = [match.end() for match in re.finditer(r"[\d.]+", lines[head])]
    for line in lines[head + 1 : head + 3]:
        cells = [match.end() for match in re.finditer(r"-?\d+\.\d\d(?=\s|$)", line)]
        assert cells
        assert set(cells) <= set(ends)


def test_help_speaks_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "(d)" not in capsys.readouterr().out


def test_the_docs_ask_for_no_package_that_no_extra_brings() -> None:
    root = Path(__file__).parent.parent
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    assert not [page.name for page in pages if "pandas" in page.read_text()]


def test_decode_add_names_the_function_for_tensors() -> None:
    frame = perbit.encode(np.ones(2000, np.float32), "fp16")
    with pytest.raises(perbit.EncodeError, match=r"for tensors there is perbit.torch.decode_add"):
        perbit.decode_add(frame, torch.zeros(2000))
    with pytest.raises(perbit.EncodeError, match=r"float32 array$"):
        perbit.decode_add(frame, np.zeros(2000))


@pytest.mark.parametrize("command", [*cli.COMMANDS, "data", "convex"])
def test_every_command_speaks_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--json" in capsys.readouterr().out
