"""The recorder of `perbit compare --statistics`: a line a layer and epoch, of the update and of what its memory adds; resumable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perbit.gennorm import GenNorm
from perbit.report import through_training
from perbit.sim.federated import Method, Task, run
from perbit.sim.federated.runs import Progress
from perbit.sim.federated.statistics import described, lines

TASK = Task(
    data="digits", model="mlp-wide", clients=4, rounds=30, local_epochs=0, batch=32, server_rate=0.1, evaluate_every=10
)
CO3 = Method("co3", "co3", "fp(2, 1) | huffman")
PLAIN = Method("float32", "sgd")


def recorded(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "statistics.jsonl").read_text().splitlines()]


def test_a_line_for_every_layer_and_epoch(tmp_path: Path) -> None:
    run(TASK, CO3, 0, tmp_path, with_statistics=True)
    found = recorded(tmp_path)
    epochs = {line["epoch"]: line["round"] for line in found}
    assert epochs == {1: 1, 2: 13, 3: 25}  # 360 samples a client, 32 in a round
    assert len({line["tensor"] for line in found}) >= 2
    assert "g+m" not in found[0] or found[0]["l1_memory"] == 0  # nothing has been kept back before the first message
    last = found[-1]
    assert last["l1_memory"] > 0
    assert last["g+m"] != last["g"]
    assert {"beta", "alpha", "kurtosis", "mean", "variance", "normal", "laplace", "gennorm"} == last["g"].keys()


def test_without_a_memory_there_is_only_the_update(tmp_path: Path) -> None:
    run(TASK, PLAIN, 0, tmp_path, with_statistics=True)
    assert all("g+m" not in line and "l1_memory" not in line for line in recorded(tmp_path))


def test_recording_changes_nothing_else_and_resumes(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(now: Progress, _: Any) -> None:
        if now.done == 14:
            raise StopError

    plain = run(TASK, CO3, 0, tmp_path / "plain")
    whole = run(TASK, CO3, 0, tmp_path / "whole", with_statistics=True)
    assert plain == whole
    assert not (tmp_path / "plain" / "statistics.jsonl").exists()
    with pytest.raises(StopError):
        run(TASK, CO3, 0, tmp_path / "stopped", with_statistics=True, watch=stop)
    run(TASK, CO3, 0, tmp_path / "stopped", with_statistics=True, resume=True)
    assert recorded(tmp_path / "stopped") == recorded(tmp_path / "whole")


def test_what_is_described_is_what_was_sent() -> None:
    g, m = (GenNorm(beta, 0.01).sample(20_000, seed=seed).astype(np.float32) for beta, seed in ((0.6, 1), (2.0, 2)))
    (line,) = lines(3, 7, {"w": g, "b": g[:5]}, 0.7, {"w": m})
    assert (line["epoch"], line["round"], line["tensor"]) == (3, 7, "w")
    assert line["g"] == described(g)
    assert line["g+m"] == described(g + np.float32(0.7) * m)
    assert line["l1_memory"] == pytest.approx(np.abs(m).mean())
    assert min(("normal", "laplace", "gennorm"), key=line["g"].get) == "gennorm"
    assert described(np.zeros(1000, np.float32)) is None
    assert described(np.ones(1000, np.float32)) is None


def test_the_report_has_a_figure_for_each_quantity(tmp_path: Path) -> None:
    outcomes = [run(TASK, method, 0, tmp_path / method.name, with_statistics=True) for method in (PLAIN, CO3)]
    drawn = through_training.figures(outcomes, [tmp_path / "float32", tmp_path / "co3"])
    assert [figure.name for figure in drawn] == [
        f"statistics-{what}-{run}" for run in (0, 1) for what in ("distance", "kurtosis", "magnitude")
    ]
    assert all(figure.png.startswith(b"\x89PNG") and figure.svg.startswith("<svg ") for figure in drawn)
    assert through_training.figures(outcomes, [tmp_path, tmp_path]) == []
