"""Training with fits on a schedule, series of runs that go on after a kill, and the plan of the long runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.channels import Direct, ErrorFeedback
from perbit.kernels.api import F32
from perbit.plan import Plan, hold
from perbit.sim.federated import Task
from perbit.sim.verdicts import Claim
from perbit_papers import training
from perbit_papers.budgets import WithinBudget
from perbit_papers.series import Contest, series
from perbit_papers.training import train

SPEC = 'fp(2, 1) | huffman(prior="always")'


def test_fits_are_held_from_one_epoch_to_the_next() -> None:
    task = Task(
        data="digits", model="mlp", clients=2, rounds=60, local_epochs=0, batch=36, server_rate=0.5, evaluate_every=20
    )
    epochs: list[int] = []

    def refit(epoch: int, mean: dict[str, F32]) -> ErrorFeedback | None:
        epochs.append(epoch)
        assert all(np.any(x) for x in mean.values())
        return ErrorFeedback(Direct(hold(Plan.of(SPEC, small=None), mean)), 0.7) if epoch == 1 else None

    first = ErrorFeedback(Direct(Plan.of('fp(2, 1, absolute=1.0) | huffman(prior="always")', small=None)), 0.7)
    history = train(task, 0, first, refit)
    assert epochs == [1, 2, 3]  # 719 samples a client, 36 in a round
    assert [point["round"] for point in history] == [0, 20, 40, 60]
    assert history[-1]["accuracy"] > 0.5 > history[0]["accuracy"]
    assert 0 < history[1]["bytes_up"] < history[-1]["bytes_up"] < history[-1]["bytes_down"] / 4
    assert train(task, 0, first, lambda epoch, mean: None)[1] == history[1]


def test_methods_that_have_sent_the_same_so_far_train_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first round all do; from then on each goes its own way, and comes out as if it had trained alone."""
    trained: list[int] = []
    alone = training._Run._trained

    def counted(run: Any, before: Any, index: int, seed: int) -> Any:
        trained.append(index)
        return alone(run, before, index, seed)

    monkeypatch.setattr(training._Run, "_trained", counted)
    task = Task(data="digits", model="mlp", clients=2, rounds=2, local_epochs=1, batch=36)

    def run(spec: str, fresh: bool = False) -> Any:
        if fresh:
            monkeypatch.setattr(training, "_TRAINED", training._Earliest(most=0))
        trained.clear()
        return train(task, 7, Direct(spec), lambda epoch, mean: None)

    run("raw")
    assert len(trained) == 4
    together = run("fp16")
    assert len(trained) == 2
    assert run("fp16", fresh=True) == together
    assert len(trained) == 4


def test_messages_stay_within_the_budget_and_fill_it() -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "a": rng.laplace(size=(100, 90)).astype(np.float32),
        "b": 5 * rng.normal(size=(50, 60)).astype(np.float32),
    }
    plan = WithinBudget.within("topk(0.1) | mwl2(2, 2)", 16_000)
    channels = [Direct(plan), Direct(hold(plan, tensors))]
    for channel in channels:
        sender, receiver = channel.init({name: x.shape for name, x in tensors.items()})
        sent = channel.send(tensors, sender, seed=0)
        assert 15_000 < 8 * len(sent.frame) <= 16_000
        assert np.array_equal(channel.receive(sent.frame, receiver)[0]["a"], sent.value["a"])
    with pytest.raises(perbit.BudgetError):
        WithinBudget.within("topk(0.1) | fp16", 100).codecs(tensors)


def test_a_series_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    output, made = tmp_path / "runs.json", []

    def one(name: str, seed: int) -> dict[str, Any]:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append((name, seed))
        return {"history": [{"accuracy": 0.5 + 0.1 * (name == "a") + 0.01 * seed}]}

    contests = [Contest(Claim("a beats b", 0.05), "a", "b")]
    with pytest.raises(KeyboardInterrupt):
        series(output, {"rounds": 3}, ["a", "b"], [0, 1], one, contests)
    made.clear()
    said = series(output, {"rounds": 3}, ["a", "b"], [0, 1], one, contests)
    assert made == [("b", 1)]
    assert said[0].startswith("REPRODUCED: a beats b")
    assert json.loads(output.read_text())["verdicts"] == said
    with pytest.raises(perbit.PerbitError, match="other settings"):
        series(output, {"rounds": 4}, ["a", "b"], [0, 1], one, contests)
