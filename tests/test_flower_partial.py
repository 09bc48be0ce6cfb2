"""The Flower engine codes replies that hold only some tensors; what it cannot code goes as it is, and it says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flower_network import Network, assert_in_step
from perbit.engines.flower import CompressedGrid, perbit_mod
from perbit.engines.flower.records import plain_bytes, to_record

SHAPES = {"backbone": (60, 80), "norm": (80,), "head": (80, 30)}
Arrays = dict[str, Any]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.WARNING)
    return caplog


def trained_from(x: Any, shape: tuple[int, ...]) -> Any:
    return (x + np.cos(np.arange(np.prod(shape))).reshape(shape)).astype(np.float32)


def grid_of(nodes_folder: Path, reply_of: Callable[[Arrays], dict[str, Arrays]], **options: Any) -> CompressedGrid:
    """Nodes that answer a model with whatever records `reply_of` makes of the trained one."""
    app = ClientApp(mods=[perbit_mod(nodes_folder)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = {name: array.numpy() for name, array in message.content["arrays"].items()}
        trained = {name: trained_from(x, x.shape) for name, x in model.items()}
        records = {name: to_record(arrays) for name, arrays in reply_of(trained).items()}
        return Message(RecordDict({**records, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return CompressedGrid(Network(app), seed=0, **options)


def exchange(grid: CompressedGrid, value: float) -> RecordDict:
    model = to_record({name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()})
    (reply,) = grid.send_and_receive([Message(RecordDict({"arrays": model}), 1, "train")], timeout=5)
    assert reply.has_content(), reply.error.reason
    return reply.content


@pytest.mark.parametrize("names", [("head",), ("backbone", "head"), ("head", "norm")])
@pytest.mark.parametrize("protocol", ["federated", "mcm", "diana", "double_squeeze"])
def test_replies_with_fewer_tensors_are_coded(
    names: tuple[str, ...], protocol: str, tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    """As FedPer, FedBN and frozen backbones have them."""
    grid = grid_of(tmp_path, lambda trained: {"arrays": {name: trained[name] for name in names}}, protocol=protocol)
    for value in range(3):
        content = exchange(grid, value)
    assert set(content["arrays"]) == set(names)
    assert np.abs(content["arrays"]["head"].numpy() - 2).max() > 0.5
    assert grid.traffic.plain_up_bytes == 3 * 4 * sum(int(np.prod(SHAPES[name])) for name in names)
    assert grid.traffic.up_bytes < grid.traffic.plain_up_bytes / 4
    assert "as it is" not in warnings.text
    assert_in_step(grid, tmp_path, [1])


def test_which_tensors_come_may_change(tmp_path: Path) -> None:
    turns = iter([("head",), ("backbone", "head"), tuple(SHAPES), ("head",)])
    grid = grid_of(tmp_path, lambda trained: {"arrays": {name: trained[name] for name in next(turns)}}, up="fp16")
    got = [exchange(grid, value)["arrays"] for value in range(4)]
    assert [set(arrays) for arrays in got] == [{"head"}, {"backbone", "head"}, set(SHAPES), {"head"}]
    for value, arrays in enumerate(got):
        for name, array in arrays.items():
            assert np.allclose(array.numpy(), trained_from(value, SHAPES[name]), atol=2e-3)
    assert grid.traffic.n_resyncs == 0
    assert_in_step(grid, tmp_path, [1])


def other_names(trained: Arrays) -> dict[str, Arrays]:
    return {"arrays": {f"my.{name}": x for name, x in trained.items()}}


def other_shapes(trained: Arrays) -> dict[str, Arrays]:
    return {"arrays": {name: x.reshape(-1) for name, x in trained.items()}}


def more_tensors(trained: Arrays) -> dict[str, Arrays]:
    return {"arrays": {**trained, "extra": np.ones(3, np.float32)}}


def whole_numbers(trained: Arrays) -> dict[str, Arrays]:
    return {"arrays": {name: x.astype(np.int32) for name, x in trained.items()}}


@pytest.mark.parametrize("reply_of", [other_names, other_shapes, more_tensors, whole_numbers])
def test_what_cannot_be_coded_goes_as_it_is(reply_of: Any, tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    grid = grid_of(tmp_path, reply_of, down="raw")
    content = exchange(grid, 0)
    content = exchange(grid, 1)
    expected = reply_of({name: trained_from(1, shape) for name, shape in SHAPES.items()})
    assert set(content) == {"arrays", "metrics"}
    for name, x in expected["arrays"].items():
        assert np.allclose(content["arrays"][name].numpy(), x, atol=1e-6)
    assert warnings.text.count("the reply goes as it is") == 2
    plain = plain_bytes(content)
    assert grid.traffic.plain_up_bytes == pytest.approx(2 * plain, rel=0.01)
    assert 0 < grid.traffic.up_bytes - grid.traffic.plain_up_bytes < 50  # the acknowledgements
    assert_in_step(grid, tmp_path, [1])


def test_of_two_records_the_one_with_the_models_name_is_coded(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    """As SCAFFOLD sends control variates beside the model."""
    grid = grid_of(tmp_path, lambda trained: {"variates": {"head": trained["head"]}, "arrays": trained}, up="fp16")
    content = exchange(grid, 1)
    assert list(content.array_records) == ["variates", "arrays"]  # strategies may go by the order
    assert np.array_equal(content["variates"]["head"].numpy(), trained_from(1, SHAPES["head"]))
    assert grid.traffic.up_bytes < grid.traffic.plain_up_bytes * 0.75
    assert not warnings.records


# --- one node that answers otherwise than the rest -------------------------------------------------------------------------


def answering(node: int, odd: Callable[[Arrays], dict[str, Any]], folder: Path) -> ClientApp:
    """All train, and this node answers with other records."""
    app = ClientApp(mods=[perbit_mod(folder)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = {name: array.numpy() for name, array in message.content["arrays"].items()}
        trained = {name: trained_from(x, x.shape) for name, x in model.items()}
        records = {"arrays": to_record(trained), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(odd(trained) if context.node_id == node else records), reply_to=message)

    return app


ODD: dict[str, Callable[[Arrays], dict[str, Any]]] = {
    "no arrays": lambda trained: {"metrics": MetricRecord({"num-examples": 1})},
    "nothing": lambda trained: {},
    "fewer tensors": lambda trained: {
        "arrays": to_record({"head": trained["head"]}), "metrics": MetricRecord({"num-examples": 1})
    },
    "other metrics": lambda trained: {"arrays": to_record(trained), "metrics": MetricRecord({"num-examples": 1, "x": 2})},
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_one_node_that_answers_otherwise_does_not_end_the_run(
    odd: str, tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    grid = CompressedGrid(Network(answering(3, ODD[odd], tmp_path), (1, 2, 3)), seed=0)
    first = to_record({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=first, num_rounds=3, timeout=5)
    assert np.abs(result.arrays["head"].numpy()).max() > 1  # two nodes trained for three rounds
    assert grid.traffic.n_dropped == 3
    assert "the answer of node 3 is dropped: its records are named otherwise" in warnings.text


def test_strategies_that_expect_different_replies_get_them(tmp_path: Path) -> None:
    grid = CompressedGrid(Network(answering(3, ODD["fewer tensors"], tmp_path), (1, 2, 3)), seed=0, alike=False)
    model = to_record({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
    replies = grid.send_and_receive(
        [Message(RecordDict({"arrays": model}), node, "train") for node in (1, 2, 3)], timeout=5
    )
    assert sorted(len(reply.content["arrays"]) for reply in replies) == [1, 3, 3]


def test_messages_that_nobody_waits_for_any_more_are_let_go(tmp_path: Path) -> None:
    """Applications may push and never pull."""
    grid = grid_of(tmp_path, lambda trained: {"arrays": trained})
    model = to_record({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
    for _ in range(5):
        grid.push_messages([Message(RecordDict({"arrays": model}), 1, "train")])
    assert len(grid._asked) == 1
