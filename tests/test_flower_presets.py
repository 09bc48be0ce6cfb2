"""Every preset and every line of docs/engines.md trains the example's network with batch norm as well as plain FedAvg does."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from flwr.app import Message
from flwr.serverapp import Grid

from flower_digits import QUICK, WHOLE, Setting, documented, made_by, network, outcome_of, plain_accuracy, train
from perbit.engines.flower import CompressedGrid
from perbit.protocols.presets import PRESETS

POINTS = 0.02
SENDABLE = [name for name in PRESETS if name != "ghost"]
LINES = documented()


def check(make: Callable[[Grid], CompressedGrid], setting: Setting) -> None:
    outcome = outcome_of(make, setting)
    assert outcome.accuracy > plain_accuracy(setting) - POINTS
    assert outcome.traffic.n_resyncs == outcome.traffic.n_dropped == 0


@pytest.mark.parametrize("line", LINES)
def test_the_lines_of_the_docs_train_batch_norm(line: str) -> None:
    check(made_by(line, LINES[line]), QUICK)


def test_the_docs_have_lines() -> None:
    assert len(LINES) >= 5
    assert "CompressedGrid(grid)" in LINES


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_the_lines_of_the_docs_reach_plain_accuracy(line: str) -> None:
    check(made_by(line, LINES[line]), WHOLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", SENDABLE)
def test_every_preset_reaches_plain_accuracy(name: str) -> None:
    check(partial(CompressedGrid, protocol=name, seed=1), WHOLE)


def test_late_answers_cost_few_bytes(tmp_path: Path) -> None:
    """Three answers in ten miss the timeout. The nodes have moved on, the server has not, and still no whole model is needed,
    except by those whose very first answer is late."""
    setting, rng, late = Setting(rounds=50, nodes=4, local_epochs=1, rate=0.05), random.Random(0), []

    def delay(reply: Message) -> Message | None:
        late.append(rng.random() < 0.3)
        return None if late[-1] else reply

    nodes = network(setting, tmp_path)
    nodes.on_the_way = delay
    grid = CompressedGrid(nodes, seed=1)
    accuracy = train(grid, setting.rounds, timeout=0)
    n_messages = setting.rounds * setting.nodes
    assert len(late) == n_messages
    assert 0.25 < sum(late) / n_messages < 0.35
    assert grid.traffic.down_bytes == sum(nodes.down_bytes)
    model_bytes = grid.session.model(grid.session.tensors).n_bytes
    assert grid.traffic.plain_down_bytes == n_messages * model_bytes
    assert n_messages * model_bytes > 10 * sum(nodes.down_bytes)
    first_answers_lost = grid.traffic.n_resyncs
    assert sum(n_bytes > model_bytes / 2 for n_bytes in nodes.down_bytes) == setting.nodes + first_answers_lost
    assert accuracy > 0.95
