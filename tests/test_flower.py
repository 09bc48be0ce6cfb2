"""The Flower engine: real ClientApps with the mod, real strategies on the CompressedGrid, and a network of dictionaries between."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg

import perbit
from perbit.engines.flower import CompressedGrid, perbit_mod
from perbit.engines.flower.records import FRAME, find_frame, framed, to_record, with_record

TARGET = np.random.default_rng(5).normal(size=(40, 60)).astype(np.float32)
NAMES = ["FedAvg", "FedAdam", "FedYogi", "FedAvgM", "FedMedian", "FedTrimmedAvg"]
STRATEGIES = [getattr(strategies, name) for name in NAMES if hasattr(strategies, name)]  # old versions have few


def first_model() -> ArrayRecord:
    return to_record({"w": np.zeros((40, 60), np.float32), "steps": np.array(0)})


def app_of(*mods: Any) -> ClientApp:
    """An app that moves w towards a target of its node, counts, and says how far it was."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w, steps = (message.content["arrays"][name].numpy() for name in ("w", "steps"))
        moved = w + np.float32(0.5) * (TARGET + np.float32(context.node_id) / 100 - w)
        arrays = to_record({"w": moved, "steps": steps.astype(np.int64) + 1})
        metrics = MetricRecord({"num-examples": 10, "distance": float(np.abs(w - TARGET).mean())})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy()
        metrics = MetricRecord({"num-examples": 10, "distance": float(np.abs(w - TARGET).mean())})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"said": ConfigRecord({"node": context.node_id})}), reply_to=message)

    return app


class Network(Grid):
    """Nodes in this process. Messages are copied on the way; `on_the_way` may change or lose (None) them."""

    def __init__(self, app: ClientApp, nodes: Iterable[int] = (1, 2)) -> None:
        self.app = app
        self.contexts = {node: Context(7, node, {}, RecordDict(), {}) for node in nodes}
        self.replies: dict[str, Message] = {}
        self.down_bytes: list[int] = []
        self.on_the_way: Callable[[Message], Message | None] = lambda message: message
        self._ids = itertools.count()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = message_id = str(next(self._ids))
        found = find_frame(message.content)
        self.down_bytes.append(len(found.frame) if found else -1)
        context = self.contexts[message.metadata.dst_node_id]
        try:
            reply = self.app(copy.deepcopy(message), context)
        except Exception as error:
            reply = Message(Error(code=2, reason=repr(error)), reply_to=message)
        if (arrived := self.on_the_way(copy.deepcopy(reply))) is not None:
            self.replies[message_id] = arrived
        return message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(known) for known in list(message_ids) if known in self.replies]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("strategies make their messages themselves")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer versions of Flower want to know who makes a message; a running app has been told."""
    if importlib.util.find_spec("flwr.supercore.task_identity"):
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        for name, value in (("_run_id", 7), ("_node_id", 99), ("_task_id", 1)):
            monkeypatch.setattr(identity, name, value)


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(app_of(perbit_mod(tmp_path)))


def start(grid: Grid, rounds: int = 3, strategy: Any = FedAvg, **options: Any) -> Any:
    return strategy(**options).start(grid=grid, initial_arrays=first_model(), num_rounds=rounds, timeout=5)


def messages(*nodes: int, kind: str = "train", value: float = 0.0) -> list[Message]:
    """As strategies make them: one content for all."""
    model = to_record({"w": np.full((40, 60), value, np.float32), "steps": np.array(0)})
    content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": 1})})
    return [Message(content, node, kind) for node in nodes]


def assert_in_step(grid: CompressedGrid, folder: Path, nodes: Iterable[int] = (1, 2)) -> None:
    for node in nodes:
        held = perbit.session.ClientSession(folder / f"7-{node}.npz").digest
        assert held is not None
        assert grid.session.digest(node) == held


# --- training ---------------------------------------------------------------------------------------------------------


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
    names = {"down-bytes", "up-bytes", "ratio", "encode-ms", "decode-ms"}
    for metrics in (*result.train_metrics_clientapp.values(), *result.evaluate_metrics_clientapp.values()):
        assert {f"perbit-{name}" for name in names} | {"distance"} == set(metrics)
    trained = result.train_metrics_clientapp
    assert trained[1]["perbit-down-bytes"] > 4 * TARGET.size > 10 * trained[2]["perbit-up-bytes"]
    assert trained[2]["perbit-ratio"] > 20
    assert grid.traffic.up_bytes < grid.traffic.plain_up_bytes / 10
    assert "smaller" in str(grid.traffic)


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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7-1.npz", "7-2.npz"]


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


# --- trouble ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_lost_state_is_resynchronised(
    harm: str, network: Network, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = CompressedGrid(network)
    start(grid, rounds=1)
    path = tmp_path / "7-1.npz"
    path.unlink() if harm == "lost" else path.write_bytes(path.read_bytes()[:-50])
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING):
        replies = list(grid.send_and_receive(messages(1, 2, value=3), timeout=5))
    assert [reply.has_content() for reply in replies] == [True, True]
    assert {reply.metadata.reply_to_message_id for reply in replies} <= {str(i) for i in range(99)}
    assert grid.traffic.n_resyncs == 1
    assert "resync of node 1" in caplog.text
    assert_in_step(grid, tmp_path)


def test_pushing_and_pulling_by_hand_hides_a_resync(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    start(grid, rounds=1)
    (tmp_path / "7-2.npz").unlink()
    pushed = list(grid.push_messages(messages(1, 2, value=3)))
    first = list(grid.pull_messages(pushed))
    second = list(grid.pull_messages(pushed))
    assert [reply.metadata.src_node_id for reply in (*first, *second)] == [1, 2]
    assert [reply.metadata.reply_to_message_id for reply in (*first, *second)] == pushed
    assert_in_step(grid, tmp_path)


def test_a_tampered_answer_drops_that_client_only(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    start(grid, rounds=1)

    def tamper(reply: Message) -> Message:
        if reply.metadata.src_node_id == 1 and (found := find_frame(reply.content)):
            bent = bytearray(found.frame)
            bent[len(bent) // 2] ^= 1
            reply.content = with_record(reply.content, found.record, framed(bytes(bent)))
        return reply

    network.on_the_way = tamper
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages(1, 2, value=9), timeout=5)}
    assert "DecodeError" in replies[1].error.reason
    assert replies[2].content["arrays"]["w"].numpy().shape == (40, 60)
    assert grid.traffic.n_dropped == 1
    network.on_the_way = lambda reply: reply
    result = start(grid, rounds=1)
    assert result.arrays is not None
    assert_in_step(grid, tmp_path)


def test_an_old_answer_is_noticed_and_healed(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    kept: list[Message] = []
    network.on_the_way = lambda reply: kept.append(copy.deepcopy(reply)) or reply  # type: ignore[func-returns-value]
    list(grid.send_and_receive(messages(1), timeout=5))
    old = next(message for message in kept if message.has_content())

    def replay(reply: Message) -> Message:
        reply.content = old.content
        return reply

    network.on_the_way = replay
    (dropped,) = grid.send_and_receive(messages(1, value=1), timeout=5)
    assert "StateMismatch" in dropped.error.reason
    network.on_the_way = lambda reply: reply
    (healed,) = grid.send_and_receive(messages(1, value=2), timeout=5)
    assert healed.has_content()
    assert_in_step(grid, tmp_path, [1])


def test_an_answer_that_is_lost_has_not_happened(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1, 2), timeout=5))
    network.on_the_way = lambda reply: None if reply.metadata.src_node_id == 1 else reply
    replies = list(grid.send_and_receive(messages(1, 2, value=1), timeout=0.2))
    assert [reply.metadata.src_node_id for reply in replies] == [2]
    network.on_the_way = lambda reply: reply
    replies = list(grid.send_and_receive(messages(1, 2, value=2), timeout=5))
    assert len(replies) == 2
    assert grid.traffic.n_resyncs == 1  # node 1 had moved on
    assert_in_step(grid, tmp_path)


def test_an_app_that_fails_stays_in_step(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1), timeout=5))
    working, network.app = network.app, ClientApp(mods=[perbit_mod(tmp_path)])  # without any function
    (failed,) = grid.send_and_receive(messages(1, value=1), timeout=5)
    assert failed.has_error()
    network.app = working
    (reply,) = grid.send_and_receive(messages(1, value=2), timeout=5)
    assert reply.has_content()
    assert grid.traffic.n_resyncs == 0


def test_a_diverged_client_is_left_out(tmp_path: Path) -> None:
    def diverge(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_id == 1 and "arrays" in reply.content:
            reply.content["arrays"] = to_record({"w": TARGET * np.float32("nan"), "steps": np.array(1)})
        return reply

    grid = CompressedGrid(Network(app_of(perbit_mod(tmp_path), diverge)))
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages(1, 2), timeout=5)}
    assert "NaN" in replies[1].error.reason
    assert replies[2].has_content()


def test_a_client_without_the_mod_is_told(network: Network) -> None:
    network.app = app_of()
    replies = list(CompressedGrid(network).send_and_receive(messages(1), timeout=5))
    assert replies[0].has_error()
    (asked,) = messages(2, kind="query")
    (reply,) = CompressedGrid(network).send_and_receive([asked], timeout=5)
    assert "perbit_mod" in reply.error.reason


def test_a_client_that_cannot_be_helped_is_left_out(network: Network) -> None:
    grid = CompressedGrid(network)
    asking = perbit.session.envelope.ask_for_resync(b"", "never content")

    def ask(reply: Message) -> Message:
        reply.content = RecordDict({"perbit": framed(asking)})
        return reply

    network.on_the_way = ask
    (reply,) = grid.send_and_receive(messages(1), timeout=5)
    assert "never content" in reply.error.reason
    assert (grid.traffic.n_resyncs, grid.traffic.n_dropped) == (2, 1)


def test_without_perbits_grid_the_mod_does_nothing(network: Network, tmp_path: Path) -> None:
    result = start(network)
    assert result.arrays is not None
    assert FRAME not in result.arrays
    assert not list(tmp_path.iterdir())
