"""The Flower engine: real strategies on the CompressedGrid train real ClientApps with the mod as without it, and their bytes are counted."""

# ruff: noqa: F401, F811 - fixtures are imported to be found by their names

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg

import perbit
from flower_network import TARGET, Network, app_of, assert_in_step, messages, network, start
from perbit.engines.flower import CompressedGrid, perbit_mod
from perbit.engines.flower.records import FRAME, to_record, with_record

NAMES = ["FedAvg", "FedAdam", "FedYogi", "FedAvgM", "FedMedian", "FedTrimmedAvg"]
STRATEGIES = [getattr(strategies, name) for name in NAMES if hasattr(strategies, name)]  # old versions have few


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_work_unchanged(strategy: Any, network: Network) -> None:
    """With raw codecs every strategy ends where it ends without perbit."""
    plain = start(Network(app_of()), strategy=strategy).arrays
    coded = start(CompressedGrid(network, protocol="fedavg"), strategy=strategy).arrays
    assert np.allclose(plain["w"].numpy(), coded["w"].numpy(), rtol=1e-5, atol=1e-5)
    assert np.array_equal(plain["steps"].numpy(), coded["steps"].numpy())
    assert plain["steps"].dtype == coded["steps"].dtype


OPTIONS: list[dict[str, Any]] = [
    {},
    {"up": "topk(0.1)", "down": "fp16"},
    {"up": perbit.Plan.of("qsgd(7) | rans", rules={"w*": "topk(0.1) | fp16"})},
    {"protocol": "mcm", "up": "qsgd(15) | rans", "down": "qsgd(15) | rans"},
    {"protocol": "dore", "up": "qsgd(15)", "down": "qsgd(63)"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_training_converges_and_both_ends_agree(options: dict[str, Any], network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network, seed=1, **options)
    result = start(grid, rounds=25)
    assert np.abs(result.arrays["w"].numpy() - TARGET).mean() < 0.25
    assert result.arrays["steps"].numpy() == 25
    assert grid.traffic.n_resyncs == grid.traffic.n_dropped == 0
    assert_in_step(grid, tmp_path)


def test_metrics_are_in_flowers_records(network: Network) -> None:
    grid = CompressedGrid(network)
    result = start(grid, rounds=2)
    names = {"down-bytes", "up-bytes", "ratio", "round-ratio", "encode-ms", "decode-ms"}
    for metrics in (*result.train_metrics_clientapp.values(), *result.evaluate_metrics_clientapp.values()):
        assert {f"perbit-{name}" for name in names} | {"distance"} == set(metrics)
    trained = result.train_metrics_clientapp
    assert trained[1]["perbit-down-bytes"] > 4 * TARGET.size > 10 * trained[2]["perbit-up-bytes"]
    assert trained[2]["perbit-ratio"] > 20
    assert grid.traffic.up_bytes < grid.traffic.plain_up_bytes / 10


def test_the_traffic_is_what_the_network_saw(network: Network) -> None:
    grid = CompressedGrid(network)
    start(grid)
    assert grid.traffic.down_bytes == sum(network.down_bytes)
    assert grid.traffic.plain_down_bytes > len(network.down_bytes) * 4 * TARGET.size


def test_a_model_the_client_holds_is_not_sent_again(network: Network) -> None:
    start(CompressedGrid(network), rounds=2)
    first, evaluated, trained_again = (network.down_bytes[i] for i in (0, 2, 4))
    assert first > 4 * TARGET.size > evaluated
    assert trained_again < 24  # evaluation brought the model already


def test_contents_of_strategies_are_not_edited(network: Network) -> None:
    asked = messages(1, 2)
    content = asked[0].content
    grid = CompressedGrid(network)
    replies = list(grid.send_and_receive(asked, timeout=5))
    assert set(content["arrays"]) == {"w", "steps"}
    assert [reply.content["arrays"]["steps"].numpy().tolist() for reply in replies] == [1, 1]
    assert {reply.metadata.src_node_id for reply in replies} == {1, 2}
    assert set(replies[0].content) == {"arrays", "metrics"}


def test_flowers_state_holds_a_digest_only(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    start(grid)
    for node, context in network.contexts.items():
        assert dict(context.state["perbit"]) == {"digest": (grid.session.digest(node) or b"").hex()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7-1", "7-2"]


def test_a_torch_model_with_batch_norm(tmp_path: Path) -> None:
    """State dicts go through as they do without perbit: int64 counters are exact, although FedAvg makes floats of them."""
    app = ClientApp(mods=[perbit_mod(tmp_path)])

    def net() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 2))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(4, 20) * torch.arange(4.0)[:, None]).square().sum().backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": 4})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    grid = CompressedGrid(Network(app))
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(net().state_dict()), num_rounds=4, timeout=5)
    state = result.arrays.to_torch_state_dict()
    assert state["1.num_batches_tracked"] == 20
    assert (state["1.running_var"] > 0).all()
    net().load_state_dict(state)
    assert grid.traffic.n_resyncs == grid.traffic.n_dropped == 0
    assert_in_step(grid, tmp_path)


def test_nodes_may_come_and_go(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network, protocol="mcm", seed=0)
    for value, nodes in enumerate([(1,), (1, 2), (2,), (2,), (1, 2)]):
        replies = list(grid.send_and_receive(messages(*nodes, value=value), timeout=5))
        assert len(replies) == len(nodes)
        assert not any(reply.has_error() for reply in replies)
    assert grid.traffic.n_resyncs == 0
    assert_in_step(grid, tmp_path)


def test_other_records_travel_as_they_are(network: Network) -> None:
    grid = CompressedGrid(network)
    (asked,) = messages(1)
    asked.content = with_record(asked.content, "extra", to_record({"v": np.arange(3)}))
    (reply,) = grid.send_and_receive([asked], timeout=5)
    assert reply.has_content()
    assert grid.traffic.down_bytes > network.down_bytes[0]  # the extra array is counted too
    (reply,) = grid.send_and_receive([Message(RecordDict(), 2, "query")], timeout=5)
    assert reply.content["said"]["node"] == 2


def test_without_perbits_grid_the_mod_does_nothing(network: Network, tmp_path: Path) -> None:
    result = start(network)
    assert result.arrays is not None
    assert FRAME not in result.arrays
    assert not list(tmp_path.iterdir())


def content_of(value: float) -> RecordDict:
    return messages(1, value=value)[0].content


def test_two_models_at_once_are_coded_in_any_order(tmp_path: Path) -> None:
    """As clusters of nodes have them; the answers to both are taken, and the caller's order is kept."""
    grid = CompressedGrid(Network(app_of(perbit_mod(tmp_path)), range(6)), up="raw")
    for turn in range(3):
        values = [10.0 * (node % 2) + turn for node in range(6)]
        asked = [Message(content_of(value), node, "train") for node, value in enumerate(values)]  # a record for each
        replies = list(grid.send_and_receive(asked, timeout=5))
        assert [reply.metadata.src_node_id for reply in replies] == list(range(6))
        for reply, value in zip(replies, values, strict=True):
            moved = value + 0.5 * (TARGET + reply.metadata.src_node_id / 100 - value)
            assert np.allclose(reply.content["arrays"]["w"].numpy(), moved, atol=0.2)
    assert grid.traffic.n_stale == grid.traffic.n_resyncs == 0
    assert grid.traffic.down_bytes < grid.traffic.plain_down_bytes / 2
    assert_in_step(grid, tmp_path, range(6))


def test_more_models_at_once_go_as_they_are(tmp_path: Path) -> None:
    """The answers are right, whatever is coded; and the bytes are counted."""
    network = Network(app_of(perbit_mod(tmp_path)), range(4))
    grid = CompressedGrid(network, up="raw")
    asked = [Message(content_of(10.0 * node), node, "train") for node in range(4)]
    replies = list(grid.send_and_receive(asked, timeout=5))
    for node, reply in enumerate(replies):
        moved = 10 * node + 0.5 * (TARGET + node / 100 - 10 * node)
        assert np.allclose(reply.content["arrays"]["w"].numpy(), moved, atol=1e-5)
    assert [n_bytes > 0 for n_bytes in network.down_bytes] == [True, True, False, False]
    assert grid.traffic.down_bytes > 4 * 4 * TARGET.size
    assert grid.traffic.up_bytes > 4 * 4 * TARGET.size
