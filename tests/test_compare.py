"""perbit compare, train and tune: from a TOML file to a table whose bytes are the ledger's; mistakes in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import perbit
from perbit import plugins
from perbit.cli import main
from perbit.commands import tune
from perbit.errors import PerbitError
from perbit.sim.compare import config, recipe, search, summary
from perbit.sim.compare.config import ConfigError
from perbit.sim.compare.links import Link, round_seconds
from perbit.sim.federated import ledger, run
from perbit.sim.federated.settings import Method

pytest.importorskip("torch")

SMALL = """
title = "small"
seeds = [0, 1]
[task]
data = "digits"
model = "mlp"
clients = 3
rounds = 3
train_samples = 150
test_samples = 100
[[methods]]
name = "float32"
[[methods]]
name = "sparse"
protocol = "co3"
decay = 1.0
up = "topk(0.05) | qsgd(7) | rans"
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def compare(small: Path, output: Path, *more: str) -> int:
    return main(["compare", str(small), "-o", str(output), "--processes", "1", *more])


def results(output: Path) -> dict[str, bytes]:
    """Everything that depends on the seed alone."""
    found = [output / "results.json", *output.rglob("ledger.jsonl"), *output.rglob("result.json")]
    return {str(path.relative_to(output)): path.read_bytes() for path in found}


def test_the_table_is_the_ledger(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert compare(small, output, "--no-report", "--dump-frames") == 0
    said = capsys.readouterr().out
    for name in ("float32", "sparse"):
        lines = [line for seed in (0, 1) for line in ledger.read(output / f"{name}-seed{seed}" / "ledger.jsonl")]
        up, down = (sum(line["n_bytes"] for line in lines if line["direction"] == way) for way in ("up", "down"))
        row = next(line for line in said.splitlines() if line.startswith(name))
        assert f" {up / 2e6:.3f} " in row
        assert f" {down / 2e6:.3f} " in row
    assert "Use topk(0.05) | qsgd(7) | rans (co3)" in said or "No method stays within a point" in said
    frame = sorted((output / "sparse-seed0" / "frames").glob("*-up-0.pbit"))[0]
    assert main(["decode", str(frame), "-o", str(tmp_path / "update.npz")]) == 0
    assert set(perbit.loads(frame.read_bytes())) == {"1.weight", "1.bias", "3.weight", "3.bias"}


def test_one_process_or_two_the_same_results(small: Path, tmp_path: Path) -> None:
    assert compare(small, tmp_path / "one", "--no-report") == 0
    assert compare(small, tmp_path / "two", "--no-report", "--processes", "2") == 0
    assert results(tmp_path / "one") == results(tmp_path / "two")


@pytest.mark.slow
def test_killed_and_resumed(small: Path, tmp_path: Path) -> None:
    """kill -9 of the parent ends its children too; --resume ends where an uninterrupted run ends."""
    small.write_text(SMALL.replace("rounds = 3", "rounds = 40"))
    assert compare(small, tmp_path / "whole", "--no-report") == 0
    command = [sys.executable, "-m", "perbit.cli", "compare", str(small), "-o", str(tmp_path / "killed"), "--no-report"]
    for n_bytes in (20_000, 60_000):
        process = subprocess.Popen([*command, "--processes", "2", "--resume"], stderr=subprocess.DEVNULL)
        while (
            process.poll() is None
            and sum(p.stat().st_size for p in (tmp_path / "killed").rglob("ledger.jsonl")) < n_bytes
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert main([*command[3:], "--processes", "1", "--resume"]) == 0
    assert results(tmp_path / "whole") == results(tmp_path / "killed")


def _heed_ctrl_c() -> None:
    """Shells start background jobs with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def long_comparison(small: Path, output: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison that would take very long, in a process group of its own, once it has begun to write."""
    small.write_text(SMALL.replace("rounds = 3", "rounds = 4000"))
    command = [sys.executable, "-m", "perbit.cli", "compare", str(small), "-o", str(output), "--processes", "2"]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, start_new_session=True, preexec_fn=_heed_ctrl_c, **pipes) as process:
        try:
            while not list(output.rglob("ledger.jsonl")):
                assert process.poll() is None
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["ctrl-C", "kill", "kill the group"])
def test_stopping_is_one_sentence(how: str, small: Path, tmp_path: Path) -> None:
    with long_comparison(small, tmp_path / "out") as process:
        if how == "kill":
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGINT if how == "ctrl-C" else signal.SIGTERM)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert said.splitlines()[-1] == "perbit: stopped; the same command with --resume goes on from here"
    assert "Traceback" not in said
    assert "leaked" not in said
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_folder_has_one_writer(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with long_comparison(small, tmp_path / "out"):
        assert compare(small, tmp_path / "out", "--resume") == 2
    assert "another perbit is at work in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rounds = 3", "rounds = ", "line 8, key rounds: invalid value"),
        ("rounds = 3", "rouds = 3", "line 8, key rouds: rouds is not known; did you mean rounds?"),
        ("rounds = 3", 'rounds = "3"', "line 8, key rounds: rounds must be a whole number"),
        ("clients = 3", "clients = 0", "line 7, key clients: clients must be at least 1"),
        ("qsgd(7) | rans", "rans", "line 17, key up: the spec"),
        ('"co3"', '"co4"', "line 15, key protocol: there is no protocol 'co4'; did you mean co3?"),
        ("decay = 1.0", "whole_model = 1", "line 16, key whole_model: whole_model must be true or false"),
        ("decay = 1.0", 'whole_model = "yes"', "line 16, key whole_model: whole_model must be true or false"),
        ("decay", "decoy", "line 16, key decoy: decoy is no parameter of co3"),
        ('name = "sparse"', 'name = "float32"', "line 14, key name: name 'float32' is used twice"),
        ("seeds = [0, 1]", "seeds = 0", "line 3, key seeds: seeds must be a list"),
        ("[[methods]]", "[methods]", "cannot declare"),
        ('name = "float32"', 'label = "float32"', "line 11, key name: name is missing"),
    ],
)
def test_mistakes_are_named_by_line_and_key(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(SMALL.replace(old, new), "small.toml")
    assert str(caught.value).startswith("small.toml, line ")
    assert said in str(caught.value).lower().replace("ROUNDS", "rounds") or said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"digits": "digitz"}, "there is no data set digitz; did you mean digits?"),
        ({"digits": "mnist"}, "perbit data mnist"),
        ({'"mlp"': '"ncf"'}, "cannot be built for digits"),
        ({'"mlp"': '"nowhere:Net"'}, "cannot be imported"),
    ],
)
def test_what_cannot_run_is_said_before_anything_is_written(
    changes: dict[str, str],
    said: str,
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PERBIT_DATA", str(tmp_path / "nothing"))
    for old, new in changes.items():
        small.write_text(small.read_text().replace(old, new))
    assert compare(small, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith("perbit: ")
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_wrong_names_and_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (
        ("dmo", "did you mean demo?"),
        ("no/where.toml", "No such file"),
        (str(tmp_path), "cannot read"),
    ):
        assert main(["compare", name]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["compare", "demo", "--rounds", "1", "-o", str(tmp_path / "file" / "out")]) == 2
    assert "cannot make the folder" in capsys.readouterr().err


def test_a_full_disk_is_one_sentence(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("perbit.channels.packing.np.savez", full)
    assert compare(small, tmp_path / "out") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("perbit: cannot write")
    assert error.endswith("No space left on device")
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"ledger.jsonl", "timings.jsonl"}
    monkeypatch.undo()
    assert compare(small, tmp_path / "out", "--resume", "--no-report") == 0
    assert compare(small, tmp_path / "fresh", "--no-report") == 0
    assert results(tmp_path / "out") == results(tmp_path / "fresh")


def test_built_in_comparisons_are_sound() -> None:
    made = {name: config.load(name) for name in (*config.OWN, *plugins.offered("comparison"))}
    assert len(made["demo"].methods) >= 6
    assert any(method.is_float32 for method in made["demo"].methods)
    assert made["mcm-deep"].task.clients == 20


def test_links_turn_bytes_into_time() -> None:
    link = Link("uneven", up=(1.0, 2.0), down=4.0, latency_ms=500.0)
    lines = [
        {"round": 1, "client": 0, "direction": "up", "n_bytes": 250_000},  # 2 s and half a second of latency
        {"round": 1, "client": 1, "direction": "up", "n_bytes": 250_000},
        {"round": 1, "client": 1, "direction": "down", "n_bytes": 500_000},  # 1 s, half a second
    ]
    clock = {
        "round": 1,
        "receive": {"0": 0.0, "1": 0.25},
        "compute": {"0": 1.0, "1": 1.0},
        "encode": {"0": 0.0, "1": 0.0},
    }
    assert round_seconds(lines, [{**clock, "decode": 0.5, "server": 0.5}], link) == [
        1.0 + 1.0 + 0.5 + 1.0 + 0.5 + 0.25 + 1.0
    ]


def test_train_prints_what_it_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "mlp", "--rounds", "2", "--clients", "3", "--train-samples", "120", "--test-samples", "50"]
    method = ["--protocol", "co3", "--up", "topk(0.1) | fp16", "--set", "decay=1"]
    assert main(["train", *options, *method, "-o", str(tmp_path / "run"), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["bytes_up"] == sum(
        line["n_bytes"] for line in ledger.read(tmp_path / "run" / "ledger.jsonl") if line["direction"] == "up"
    )
    assert main(["train", "--set", "decay"]) == 2
    assert "key=value" in capsys.readouterr().err


def test_tune_meets_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [
        Method("fp16", "fedavg", "fp16"),
        Method("3 levels", "qsgd", "qsgd(1) | rans"),
        Method("sparse", "co3", "topk(0.1) | mwl2(bits=2, m=2) | rans", options={"decay": 1.0}),
    ]
    monkeypatch.setattr("perbit.commands.tune.candidates", lambda tensors, bits: few)
    options = ["--model", "mlp", "--rounds", "6", "--clients", "3", "--train-samples", "120", "--test-samples", "50"]
    command = ["tune", "--budget-mb", "0.07", "--seeds", "0", "1", *options, "-o", str(tmp_path), "--processes", "1"]
    assert main([*command, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert best["mb_up"] <= 0.07
    assert best["up"] != "fp16"
    assert best["finals"][0]["name"] == "float32"
    assert [t["fate"] for t in best["tried"] if t["method"]["name"] == "fp16"] == ["over the budget"]
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 2 * len(best["finals"])
    assert (tmp_path / "tried.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report.html").is_file()
    assert main([*command, "--resume"]) == 0
    said = capsys.readouterr().out
    written = (tmp_path / "table.txt").read_text()
    assert written in said
    for part in ("tried", "over the budget", "float32", "Beside float32:", "TOML:", "Flower:", "DDP:"):
        assert part in written
    assert 'id="picture-tried"' in (tmp_path / "report.html").read_text()
    pasted = "[[methods]]" + said.partition("[[methods]]")[2].partition("Flower:")[0]
    found = config.parse(pasted).methods[0]
    assert (found.up, found.whole_model) == (best["up"], best.get("whole_model", False))
    assert main(["tune", "--budget-mb", "0"]) == 2


TENSORS = {"a": np.zeros((64, 64), np.float32), "b": np.zeros((100, 64), np.float32), "bias": np.zeros(64, np.float32)}


def test_tune_knows_rules_low_rank_and_budgets() -> None:
    made = search.candidates(TENSORS, 20_000)
    assert any(method.rules == {"size:6400..": "topk(0.01) | qsgd(7) | rans"} for method in made)
    assert any(method.up.startswith("lowrank(") for method in made)
    assert {method.up for method in made if method.budget_bits} == {"topk(?) | mwl2(bits=2, m=2) | rans", "rd(?)"}
    assert len({method.name for method in made}) == len(made)
    tight = search.candidates({"a": TENSORS["a"]}, 50)  # no message is so short, and there is no second size
    assert not any(method.rules or method.budget_bits for method in tight)


@pytest.mark.parametrize(("bits", "small"), [(20_000, "auto"), (5000, "fp16"), (2000, "same")])
def test_tune_spends_no_budget_on_exact_small_tensors(bits: int, small: str) -> None:
    """A network whose small tensors are a large part of what it may send would otherwise be left with `rd` alone."""
    made = search.candidates(TENSORS, bits)
    assert {method.small for method in made if not method.up.startswith("rd(")} == {small}
    assert {method.small for method in made if method.up.startswith("rd(")} == {"auto"}


def test_tune_names_what_its_report_recommends_where_that_is_another() -> None:
    """The terminal has the most accurate method within the budget, the report the cheapest within a point of float32."""
    names = [
        Method(name, "fedavg", up) for name, up in (("float32", "raw"), ("gentle", "fp16"), ("harsh", "qsgd(1) | rans"))
    ]
    reached = [(0.95, 10.0), (0.949, 5.0), (0.945, 0.1)]
    rows = [
        summary.Row(m, a, None, mb, 10.0, 32.0, 10 / mb, 0.1, 0.1, False, (a,))
        for m, (a, mb) in zip(names, reached, strict=True)
    ]
    said = tune._text(rows, [], 6.0)
    assert "best under 6 MB: gentle, 94.9%" in said
    assert "The report recommends harsh: 94.5% with 0.100 MB up. Use qsgd(1) | rans" in said
    assert "The report recommends" not in tune._text(rows[:2], [], 6.0)


def test_what_tune_prints_to_paste_is_the_method() -> None:
    for method in search.candidates(TENSORS, 20_000):
        assert replace(config.parse(recipe.toml(method)).methods[0], name=method.name) == method


def test_tune_judges_what_was_reached_at_each_stage(tmp_path: Path) -> None:
    """Also where a task is evaluated rarely: without that, all would tie at the accuracy of the first model."""
    task, (method, _) = replace(config.parse(SMALL).task, rounds=12, evaluate_every=10), config.parse(SMALL).methods
    stages = [run(task, method, 0, tmp_path, resume=True, until=until)["history"][-1]["round"] for until in (1, 4, 12)]
    assert stages == [1, 4, 12]


def test_advice_names_the_cheapest_close_method() -> None:
    method = config.parse(SMALL).methods
    row = summary.Row(method[0], 0.95, None, 10.0, 10.0, 32.0, 1.0, 0.1, 0.1, False)
    close = summary.Row(method[1], 0.945, None, 0.1, 10.0, 0.3, 100.0, 0.1, 0.1, False)
    far = summary.Row(method[1], 0.90, None, 0.1, 10.0, 0.3, 100.0, 0.1, 0.1, False)
    assert summary.advice([row, close]).startswith(
        "Use topk(0.05) | qsgd(7) | rans (co3): 94.5% against float32's 95.0%"
    )
    assert summary.recommended([row, close]) is close
    assert summary.advice([row, far]).startswith("No method stays within a point")
    assert "Nothing was compressed" in summary.advice([row])
    assert "Try a smaller rate" in summary.advice([row, replace(far, diverged=True)])


def test_advice_says_whether_seeds_tell_the_method_from_float32() -> None:
    float32, sparse = config.parse(SMALL).methods
    common = (10.0, 10.0, 32.0, 1.0, 0.1, 0.1, False)
    reference = summary.Row(float32, 0.95, 0.01, *common, (0.94, 0.95, 0.96))
    noisy = summary.Row(sparse, 0.945, 0.02, *common, (0.96, 0.93, 0.945))
    lower = summary.Row(sparse, 0.945, 0.01, *common, (0.935, 0.944, 0.956))
    alone = [replace(row, finals=row.finals[:1]) for row in (reference, noisy)]
    assert summary.advice([reference, noisy]).endswith("3 seeds do not tell the two apart.")
    assert summary.advice([reference, lower]).endswith("Paired over 3 seeds it is below float32 (p = 0.007).")
    assert summary.advice(alone).endswith("One seed: a difference of a point or two may be chance.")


def test_nothing_is_recommended_where_nobody_learnt() -> None:
    """A word model whose methods all score what the commonest word gives has shown nothing."""
    float32, sparse = config.parse(SMALL).methods
    common = (10.0, 10.0, 32.0, 1.0, 0.1, 0.1, False)
    guessing = [summary.Row(method, 0.078, None, *common, trivial=0.078) for method in (float32, sparse)]
    assert summary.recommended(guessing) is None
    assert summary.advice(guessing).startswith("No recommendation: no method has learnt anything yet")
    assert "7.8%" in summary.advice(guessing)
    assert summary.recommended([guessing[0], replace(guessing[1], accuracy=0.1)]) is not None


def test_the_commonest_answer_is_known(tmp_path: Path) -> None:
    made = config.parse(SMALL)
    outcome = run(replace(made.task, rounds=1), made.methods[0], 0, tmp_path)
    assert 0.08 < outcome["trivial_accuracy"] < 0.13  # ten digits


def test_a_budget_nobody_meets_is_an_error(tmp_path: Path) -> None:
    made = config.parse(SMALL)
    outcome = {"done": 1, "diverged": False, "bytes_up": 4000, "history": [{"accuracy": 0.5}]}
    with pytest.raises(PerbitError, match=r"the smallest needs about 0\.012 MB"):
        search.halving(
            made.task, made.methods, 0.001, 0, tmp_path, lambda jobs: [outcome for _ in jobs], lambda *_: None, False
        )
