"""Flower in one process: real ClientApps with the mod, the strategies' messages, and a network of dictionaries between."""

from __future__ import annotations

import copy
import importlib.util
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

import perbit
from perbit.engines.flower import CompressedGrid, perbit_mod
from perbit.engines.flower.records import find_frame, to_record

TARGET = np.random.default_rng(5).normal(size=(40, 60)).astype(np.float32)


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
    """Nodes in this process. Messages are copied on the way; `on_the_way` may change or lose (None) them.

    `down_bytes` and `up_bytes` are the lengths of the frames that passed, -1 for messages without one.
    """

    def __init__(self, app: ClientApp, nodes: Iterable[int] = (1, 2), run_config: dict[str, Any] | None = None) -> None:
        self.app, nodes = app, list(nodes)
        self.contexts = {
            node: Context(7, node, {"partition-id": i, "num-partitions": len(nodes)}, RecordDict(), run_config or {})
            for i, node in enumerate(nodes)
        }
        self.replies: dict[str, Message] = {}
        self.down_bytes: list[int] = []
        self.up_bytes: list[int] = []
        self.on_the_way: Callable[[Message], Message | None] = lambda message: message
        self._ids = itertools.count()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = message_id = str(next(self._ids))
        self.down_bytes.append(_frame_bytes(message))
        context = self.contexts[message.metadata.dst_node_id]
        try:
            reply = self.app(copy.deepcopy(message), context)
        except Exception as error:
            reply = Message(Error(code=2, reason=repr(error)), reply_to=message)
        self.up_bytes.append(_frame_bytes(reply))
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


def _frame_bytes(message: Message) -> int:
    found = find_frame(message.content) if message.has_content() else None
    return len(found.frame) if found else -1


def identify() -> None:
    """Newer versions of Flower want to know who makes a message; a running app has been told."""
    if importlib.util.find_spec("flwr.supercore.task_identity"):
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        for name, value in (("_run_id", 7), ("_node_id", 99), ("_task_id", 1)):
            setattr(identity, name, value)


identify()


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
        held = perbit.session.ClientSession(folder / f"7-{node}").digest
        assert held is not None
        assert grid.session.digest(node) == held
