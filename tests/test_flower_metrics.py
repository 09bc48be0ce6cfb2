"""The Flower engine counts what went: true ratios in the agreed dtypes, failures as dropped, late answers apart."""

# ruff: noqa: F401, F811 - fixtures are imported to be found by their names

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAdam

from flower_network import TARGET, Network, app_of, assert_in_step, messages, network, start
from perbit.engines.flower import CompressedGrid, Traffic, perbit_mod

PLAIN = 4 * TARGET.size + 8  # w in float32, and a counter of int64


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Flower's logger keeps its messages to itself."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


def test_ratios_are_those_of_the_bytes(network: Network, log: pytest.LogCaptureFixture) -> None:
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1), timeout=5))
    before = replace(grid.traffic)
    log.clear()
    replies = list(grid.send_and_receive(messages(1, 2, value=1), timeout=5))  # a few bytes, and a whole model
    metrics = [dict(reply.content["metrics"].items()) for reply in replies]
    sent = [m["perbit-down-bytes"] + m["perbit-up-bytes"] for m in metrics]
    for m, n_bytes in zip(metrics, sent, strict=True):
        assert m["perbit-ratio"] == pytest.approx(2 * PLAIN / n_bytes)
        assert m["perbit-round-ratio"] == pytest.approx(4 * PLAIN / sum(sent))
    assert np.mean([m["perbit-ratio"] for m in metrics]) > 5 * metrics[0]["perbit-round-ratio"]  # no mean of ratios
    passed = grid.traffic.since(before)
    assert passed.ratio == pytest.approx(4 * PLAIN / sum(sent))
    assert str(passed) in log.text


def test_strategies_average_the_ratio_of_the_round_to_itself(network: Network) -> None:
    grid = CompressedGrid(network)
    result = start(grid, rounds=1, fraction_evaluate=0.0)
    assert result.train_metrics_clientapp[1]["perbit-round-ratio"] == pytest.approx(grid.traffic.ratio)


def test_a_server_optimiser_costs_no_second_model(network: Network, log: pytest.LogCaptureFixture) -> None:
    """FedAdam makes the model float64; it goes down as float32, is counted as float32, and nobody is resynchronised."""
    grid = CompressedGrid(network)
    result = start(grid, rounds=3, strategy=FedAdam)
    assert result.arrays["w"].dtype == "float64"
    assert sum(n_bytes > PLAIN / 2 for n_bytes in network.down_bytes) == 2  # one for each node
    assert grid.traffic.plain_down_bytes == PLAIN * len(network.down_bytes)
    assert grid.traffic.plain_up_bytes == PLAIN * 2 * 3
    assert grid.traffic.n_resyncs == 0
    assert "resync:" not in log.text
    assert "resync of" not in log.text


def test_every_whole_model_but_the_first_is_a_resync(network: Network, log: pytest.LogCaptureFixture) -> None:
    """What a client calls a resync in its log is counted as one."""
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1), timeout=5))
    grid.session.forget(1)
    assert "resync: full frame" not in log.text
    list(grid.send_and_receive(messages(1, value=1), timeout=5))
    assert "resync: full frame" in log.text
    assert grid.traffic.n_resyncs == 1


def test_late_answers_are_counted_apart(network: Network, tmp_path: Path) -> None:
    """Whoever pulls one by hand gets nothing, and the client keeps its place."""
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1), timeout=5))
    late: list[Message] = []
    network.on_the_way = late.append  # type: ignore[assignment,func-returns-value]
    assert list(grid.send_and_receive(messages(1, value=1), timeout=0)) == []
    network.on_the_way = lambda reply: reply
    number = late[0].metadata.reply_to_message_id
    network.replies[number] = late[0]
    assert list(grid.pull_messages([number])) == []
    assert (grid.traffic.n_stale, grid.traffic.n_dropped) == (1, 0)
    list(grid.send_and_receive(messages(1, value=2), timeout=5))
    assert grid.traffic.n_resyncs == 0
    assert_in_step(grid, tmp_path, [1])


def test_a_timeout_leaves_nothing_behind(network: Network) -> None:
    grid = CompressedGrid(network, protocol="rand_mcm")
    list(grid.send_and_receive(messages(1, 2), timeout=5))
    network.on_the_way = lambda reply: None
    for value in range(5):
        list(grid.send_and_receive(messages(1, 2, value=value), timeout=0))
    assert (grid._asked, grid._resent, grid.session._pending) == ({}, {}, {})


def test_only_so_many_clients_are_remembered(network: Network) -> None:
    grid = CompressedGrid(network, max_clients=1)
    list(grid.send_and_receive(messages(1, 2), timeout=5))
    assert [grid.session.digest(node) is None for node in (1, 2)] == [True, False]


@pytest.mark.parametrize("protocol", ["mcm", "rand_mcm"])
def test_the_servers_memories_may_be_on_disk(protocol: str, tmp_path: Path) -> None:
    """They take room in the folder given, and change nothing."""
    models = []
    for folder in (None, tmp_path / "memories"):
        network = Network(app_of(perbit_mod(tmp_path / f"nodes {folder is None}")))
        grid = CompressedGrid(network, protocol=protocol, seed=3, folder=folder)
        for value in range(4):
            replies = list(grid.send_and_receive(messages(1, 2, value=value), timeout=5))
        models.append([reply.content["arrays"]["w"].numpy() for reply in replies])
    assert np.array_equal(*models)
    assert (tmp_path / "memories").is_dir()


def test_an_average_over_all_nodes_counts_those_of_the_grid(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network, protocol="rand_mcm_averaged")
    assert not any(reply.has_error() for reply in grid.send_and_receive(messages(1), timeout=5))
    assert grid.session.population == 2
    assert_in_step(grid, tmp_path, [1])
    assert CompressedGrid(network, protocol="rand_mcm_averaged", population=9).session.population == 9


def test_absent_nodes_count_as_predicted_or_not_at_all(tmp_path: Path) -> None:
    """Two nodes with different targets; in the last round one is away, and its memory speaks for it or does not."""
    means = {}
    for absent in ("predicted", "ignored"):
        grid = CompressedGrid(
            Network(app_of(perbit_mod(tmp_path / absent)), (1, 1000)), "raw", "raw", "diana", absent=absent
        )  # alpha is 1/2 without a codec's noise
        for k in range(12):
            list(grid.send_and_receive(messages(1, 1000, value=k * 1e-6), timeout=5))
        (reply,) = grid.send_and_receive(messages(1), timeout=5)
        means[absent] = float((reply.content["arrays"]["w"].numpy() - TARGET / 2).mean())
    own, other = 0.005, 5.0  # half the way to each node's target
    assert means["ignored"] == pytest.approx(own, abs=1e-3)
    assert means["predicted"] == pytest.approx((own + other) / 2, abs=1e-2)


def test_the_first_model_can_go_in_half_the_bytes(network: Network) -> None:
    start(CompressedGrid(network, first="fp16"), rounds=1)
    assert 2 * TARGET.size < network.down_bytes[0] < 2 * TARGET.size + 1000
    with pytest.raises(ValueError, match="first is no parameter of mcm"):
        CompressedGrid(network, protocol="mcm", first="fp16")


def test_traffic_can_be_subtracted() -> None:
    some = Traffic(10, 5, 100, 400, 1, 2, 3)
    assert some.since(Traffic()) == some
    assert some.since(some) == Traffic()
    assert (some.ratio, Traffic().ratio) == (500 / 15, 1.0)
