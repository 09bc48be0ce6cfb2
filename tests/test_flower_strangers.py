"""One hostile node among three of Flower's: whatever it says beside its frame, the run goes on without it, and it is logged and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedTrimmedAvg, FedYogi, Krum

from flower_network import TARGET, Network, app_of, messages, start
from perbit.engines.flower import CompressedGrid, perbit_mod

ROUNDS = 3
Attack = Callable[[RecordDict], RecordDict]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.WARNING)
    return caplog


def metrics(**changed: Any) -> Attack:
    """The answer with other metrics; None: without one of these."""

    def attack(content: RecordDict) -> RecordDict:
        said = {**dict(content["metrics"].items()), **{name.replace("_", "-"): x for name, x in changed.items()}}
        held = MetricRecord({name: x for name, x in said.items() if x is not None})
        return RecordDict({**dict(content.items()), "metrics": held})

    return attack


def arrays(change: Callable[[dict[str, Array]], dict[str, Array]]) -> Attack:
    """The answer with other arrays; those that are no part of the model go as they are."""

    def attack(content: RecordDict) -> RecordDict:
        return RecordDict({**dict(content.items()), "arrays": ArrayRecord(change(dict(content["arrays"].items())))})

    return attack


def w(value: Any) -> Attack:
    return arrays(lambda held: {**held, "w": value if isinstance(value, Array) else Array(value)})


def renamed(old: str, new: str) -> Attack:
    return lambda content: RecordDict({new if name == old else name: x for name, x in content.items()})


def said_otherwise(**said: Any) -> Array:
    array = Array(np.zeros(TARGET.shape, np.float32))
    return Array(**{"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data, **said})


HEADER_OF_A_TERABYTE = Array(np.zeros(1)).data.replace(b"(1,), }" + b" " * 12, b"(137438953472,), }" + b" ")
ONES = np.ones(TARGET.shape)
ATTACKS: dict[str, Attack] = {
    "weight: negative": metrics(num_examples=-20),
    "weight: zero": metrics(num_examples=0),
    "weight: not a number": metrics(num_examples=float("nan")),
    "weight: infinite": metrics(num_examples=float("inf")),
    "weight: huge": metrics(num_examples=1e308),
    "weight: a list": metrics(num_examples=[1, 2]),
    "weight: none": metrics(num_examples=None),
    "metrics: not a number": metrics(distance=float("nan")),
    "metrics: a list": metrics(distance=[1.0, 2.0]),
    "metrics: an empty list": metrics(distance=[]),
    "metrics: one more": metrics(evil=1),
    "metrics: none of them": metrics(num_examples=None, distance=None),
    "records: no metrics": lambda content: RecordDict({"arrays": content["arrays"]}),
    "records: no arrays": lambda content: RecordDict({"metrics": content["metrics"]}),
    "records: one more of metrics": lambda content: RecordDict({**dict(content.items()), "a": MetricRecord()}),
    "records: one more of arrays": lambda content: RecordDict({**dict(content.items()), "a": ArrayRecord()}),
    "records: metrics under another name": renamed("metrics", "m"),
    "records: arrays under another name": renamed("arrays", "a"),
    "arrays: one more": arrays(lambda held: {**held, "evil": Array(np.ones(3))}),
    "arrays: other names": arrays(lambda held: {f"{name}\x1b[2J": x for name, x in held.items()}),
    "arrays: a very long name": arrays(lambda held: {**held, "n" * 1_000_000: Array(np.ones(3))}),
    "arrays: none": arrays(lambda held: {}),
    "arrays: another shape": w(np.ones((60, 40), np.float32)),
    "arrays: a shape that spreads": w(np.ones((1, 60), np.float32)),
    "arrays: text": w(np.full(TARGET.shape, "evil")),
    "arrays: dates": w(np.zeros(TARGET.shape, "M8[s]")),
    "arrays: complex": w(ONES.astype(complex)),
    "arrays: structures": w(np.zeros(TARGET.shape, "f4,f4")),
    "arrays: not a number": arrays(lambda held: {**held, "evil": Array(ONES * np.nan)}),
    "arrays: another type": w(said_otherwise(stype="evil")),
    "arrays: no bytes": w(said_otherwise(data=b"")),
    "arrays: an archive": w(said_otherwise(data=b"PK\x05\x06" + bytes(18))),
    "arrays: a pickle": w(said_otherwise(data=b"\x80\x04N.")),
    "arrays: a shape beyond all memory": w(said_otherwise(data=HEADER_OF_A_TERABYTE)),
    "arrays: a type that is none": w(said_otherwise(dtype="f4,(", shape=(1,))),
    "arrays: larger than it is said to be": w(said_otherwise(shape=(1, 1))),
    "nothing": lambda content: RecordDict(),
}  # fmt: skip


def hostile(attack: Attack, folder: Path, nodes: tuple[int, ...] = (1, 2, 3)) -> Network:
    """The last node attacks with every answer: beside a frame that is in order, with what the frame does not carry."""
    meant: list[RecordDict] = []

    def keep(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_id == nodes[-1] and "arrays" in reply.content:
            meant.append(reply.content)
            reply.content = RecordDict()  # what is left to perbit to do is to acknowledge
        return reply

    def meddle(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if meant:
            reply.content = RecordDict({**dict(reply.content.items()), **dict(attack(meant.pop()).items())})
        return reply

    return Network(app_of(meddle, perbit_mod(folder), keep), nodes)


@pytest.mark.parametrize("name", ATTACKS)
def test_one_node_cannot_end_a_run(name: str, tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    grid = CompressedGrid(hostile(ATTACKS[name], tmp_path))
    result = start(grid, rounds=ROUNDS)
    assert np.abs(result.arrays["w"].numpy() - TARGET).mean() < 0.7  # it starts at .8, and the others train
    assert all(np.isfinite(list(said.values())).all() for said in result.train_metrics_clientapp.values())
    assert grid.traffic.n_dropped == ROUNDS
    assert warnings.text.count("the answer of node 3 is dropped") == ROUNDS
    assert max(map(len, warnings.messages)) < 2000
    assert all(message.isprintable() for message in warnings.messages)


@pytest.mark.parametrize("strategy", [FedAdam, FedMedian, FedTrimmedAvg, FedYogi, Krum])
@pytest.mark.parametrize("name", ["weight: not a number", "metrics: not a number", "arrays: another shape", "nothing"])
def test_no_strategy_sees_it(name: str, strategy: Any, tmp_path: Path) -> None:
    grid = CompressedGrid(hostile(ATTACKS[name], tmp_path, (1, 2, 3, 4)))
    result = start(grid, rounds=ROUNDS, strategy=strategy)
    assert np.isfinite(result.arrays["w"].numpy()).all()
    assert grid.traffic.n_dropped == ROUNDS


@pytest.mark.parametrize("name", ["weight: none", "records: no metrics", "records: metrics under another name"])
def test_one_of_two_cannot_either(name: str, tmp_path: Path) -> None:
    """As many nodes answer so as otherwise: what can be weighed is right."""
    grid = CompressedGrid(hostile(ATTACKS[name], tmp_path, (1, 2)))
    start(grid, rounds=ROUNDS)
    assert grid.traffic.n_dropped == ROUNDS


def test_what_a_node_says_in_perbits_name_is_not_believed(tmp_path: Path) -> None:
    grid = CompressedGrid(hostile(metrics(**{"perbit-ratio": 1e9, "perbit-more": 1}), tmp_path))
    result = start(grid, rounds=1)
    assert grid.traffic.n_dropped == 0
    assert result.train_metrics_clientapp[1]["perbit-ratio"] < 100
    assert "perbit-more" not in result.train_metrics_clientapp[1]


def test_why_a_node_failed_cannot_command_the_terminal(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    def fail(message: Message, context: Context, call_next: Any) -> Message:
        raise ValueError("evil")

    network = Network(app_of(fail, perbit_mod(tmp_path)))
    network.on_the_way = lambda reply: Message(Error(2, "\x1b[2J" * 100_000), reply_to=asked)
    (asked,) = messages(1)
    (reply,) = CompressedGrid(network).send_and_receive([asked], timeout=5)
    for said in (reply.error.reason, *warnings.messages):
        assert said.isprintable()
        assert len(said) < 10_000


def test_a_node_that_is_the_only_one_to_answer_speaks_for_no_others(tmp_path: Path) -> None:
    network = hostile(ATTACKS["metrics: one more"], tmp_path)
    grid = CompressedGrid(network)
    for round_number in range(2):
        if round_number:  # the others fail
            network.on_the_way = lambda reply: reply if reply.metadata.src_node_id == 3 else None
        replies = list(grid.send_and_receive(messages(1, 2, 3, value=round_number), timeout=0.2))
        assert [reply.has_error() for reply in replies if reply.metadata.src_node_id == 3] == [True]


def test_weights_may_be_bounded(tmp_path: Path) -> None:
    """Any number of examples may be true; who knows better can say so."""
    claim = metrics(num_examples=10_000)
    means = []
    for bound in (None, 100):
        grid = CompressedGrid(hostile(claim, tmp_path / str(bound)), max_weight=bound)
        start(grid, rounds=1)
        means.append(grid.traffic.n_dropped)
    assert means == [0, 1]


def test_what_is_undefined_at_many_nodes_leaves_out_nobody(tmp_path: Path) -> None:
    """As a share of a class that some nodes have no example of."""
    app = ClientApp(mods=[perbit_mod(tmp_path)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        undefined = float("nan") if context.node_id % 2 else 0.5
        held = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1, "recall": undefined})}
        return Message(RecordDict(held), reply_to=message)

    grid = CompressedGrid(Network(app, (1, 2, 3, 4)))
    assert not any(reply.has_error() for reply in grid.send_and_receive(messages(1, 2, 3, 4), timeout=5))


class Careless(Network):
    """As Flower's own grid: it reads what nodes have sent when it is pulled, and raises; what was pulled with it is gone."""

    unreadable: str

    def pull_messages(self, message_ids: Any) -> Any:
        pulled = list(super().pull_messages(message_ids))
        for reply in pulled:
            if reply.metadata.src_node_id == 3:
                inflated = {"message": ValueError, "object": KeyError, "run": RuntimeError}[self.unreadable]
                raise inflated("Mismatch in children object IDs")
        return pulled


@pytest.mark.parametrize("unreadable", ["message", "object"])
def test_a_reply_that_flower_cannot_read_costs_one_round_at_most(unreadable: str, tmp_path: Path) -> None:
    network = Careless(app_of(perbit_mod(tmp_path)), (1, 2, 3))
    network.unreadable = unreadable
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1, 2, 3), timeout=0.1))
    replies = list(grid.send_and_receive(messages(1, 2, 3, value=1), timeout=0.1))
    assert sorted((reply.metadata.src_node_id, reply.has_error()) for reply in replies) == [
        (1, False),
        (2, False),
        (3, True),
    ]
    assert grid.traffic.n_dropped > 0


def test_other_errors_of_flower_are_the_applications(tmp_path: Path) -> None:
    network = Careless(app_of(perbit_mod(tmp_path)), (1, 2, 3))
    network.unreadable = "run"
    with pytest.raises(RuntimeError):
        list(CompressedGrid(network).send_and_receive(messages(1, 2, 3), timeout=0.1))


def test_a_reply_to_what_nobody_asked_is_not_passed_on(tmp_path: Path) -> None:
    """What it replies to is a node's own word."""
    network = Network(app_of(perbit_mod(tmp_path)), (1, 2, 3))

    def mislead(reply: Message) -> Message:
        if reply.metadata.src_node_id == 3:
            reply.metadata.__dict__["_reply_to_message_id"] = "evil" if len(network.up_bytes) < 4 else "0"
            reply.content = RecordDict()
        return reply

    network.on_the_way = mislead
    grid = CompressedGrid(network)
    for value in range(2):
        replies = list(grid.send_and_receive(messages(1, 2, 3, value=value), timeout=0.1))
        assert sorted(reply.metadata.src_node_id for reply in replies) == [1, 2]
    assert grid.traffic.n_stale == 2


def test_replies_that_are_meant_to_differ_pass(tmp_path: Path) -> None:
    """As the losses of all batches do, of which every node has another number: that is for a mean of the application's own."""
    app = ClientApp(mods=[perbit_mod(tmp_path)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        said = MetricRecord({"num-examples": 1, "losses": [0.5] * context.node_id})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": said}), reply_to=message)

    grid = CompressedGrid(Network(app, (1, 2, 3)))
    assert not any(reply.has_error() for reply in grid.send_and_receive(messages(1, 2, 3), timeout=5))


def test_what_an_app_does_not_weigh_is_its_own(tmp_path: Path) -> None:
    grid = CompressedGrid(hostile(ATTACKS["weight: zero"], tmp_path), weighted_by=None)
    start(grid, rounds=1, strategy=FedAvg)
    assert grid.traffic.n_dropped == 0
