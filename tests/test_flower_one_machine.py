"""What `perbit compare` measures is what Flower sends: the example's network in a simulation and on a CompressedGrid, byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import flower_digits  # noqa: F401  makes the example's modules known
from flower_network import Network
from perbit.engines.flower import CompressedGrid, perbit_mod
from perbit.engines.flower.records import to_record
from perbit.protocols import presets
from perbit.randomness import fold
from perbit.sim.federated import Method, Task, ledger, run, tensors, world
from perbit.sim.federated import rounds as simulated

SEED, NODES, ROUNDS = 5, 4, 4
TASK = Task(
    data="digits", model="digits_app.cnn:Net", clients=NODES, rounds=ROUNDS, local_epochs=1, rate=0.02, momentum=0.9,
    weights="equal", evaluate_every=ROUNDS,
)  # fmt: skip


Entry = tuple[int, int, str, int]  # round, node, direction, bytes


class SessionsMean(FedAvg):  # type: ignore[misc]
    """A strategy that leaves the step to the session: its model is float64, and the nodes come in order."""

    def __init__(self, grid: CompressedGrid) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.grid = grid

    def configure_train(self, *args: Any) -> Iterable[Message]:
        return sorted(super().configure_train(*args), key=lambda message: message.metadata.dst_node_id)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        arrived = [reply.content["arrays"] for reply in replies]
        assert len(arrived) == NODES
        exact = [name for name, array in arrived[0].items() if "int" in array.dtype]
        counters = {name: np.max([arrays[name].numpy() for arrays in arrived], axis=0) for name in exact}
        self.grid.session.step(1.0, counters)
        return to_record(self.grid.session.tensors), MetricRecord()


def in_flower(folder: Path, **options: Any) -> tuple[list[Entry], str]:
    """Every message with its bytes, and the digest of the server's model at the end."""
    place, app = world.build(TASK, SEED), ClientApp(mods=[perbit_mod(folder)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        received = {name: array.numpy() for name, array in message.content["arrays"].items()}
        key = fold(SEED, int(message.content["config"]["server-round"]))
        simulated._compute(place, TASK, received, context.node_id, fold(fold(key, simulated._CLIENT), context.node_id))
        trained = to_record({**tensors.floats(place.network), **tensors.counters(place.network)})
        content = RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    network = Network(app, range(NODES))
    grid = CompressedGrid(network, seed=SEED, goodbye_seconds=0, **options)
    first = to_record({**place.first, **tensors.counters(place.network)})
    SessionsMean(grid).start(grid=grid, initial_arrays=first, num_rounds=ROUNDS, timeout=5)
    sent = zip(network.down_bytes, network.up_bytes, strict=True)
    entries = [
        (number // NODES + 1, number % NODES, direction, n_bytes)
        for number, pair in enumerate(sent)
        for direction, n_bytes in zip(("down", "up"), pair, strict=True)
    ]
    return entries, hashlib.sha256(grid.session.flat.tobytes()).hexdigest()


def in_simulation(method: Method, folder: Path) -> tuple[list[Entry], str]:
    outcome = run(TASK, method, SEED, folder)
    lines = ledger.read(folder / "ledger.jsonl")
    entries = [(line["round"], line["client"], line["direction"], line["n_bytes"]) for line in lines]
    assert len(entries) == 2 * NODES * ROUNDS
    return entries, outcome["model_sha256"]


DEFAULT = Method("default", "federated", presets.LOCAL_UP, presets.LOCAL_DOWN)
METHODS = [
    DEFAULT,
    Method("mcm", "mcm", "qsgd(7) | rans", "qsgd(7) | rans"),
    Method("averaged", "rand_mcm_averaged", "qsgd(7) | rans", "qsgd(7) | rans", options={"reset_every": 2}),
    Method("sums", "double_squeeze", "topk(0.1) | fp16", "topk(0.1) | fp16"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.protocol)
def test_a_simulation_and_flower_send_the_same_bytes(method: Method, tmp_path: Path) -> None:
    expected = in_simulation(method, tmp_path / "simulation")
    options = {"protocol": method.make(), "population": NODES, "absent": "ignored"}
    assert in_flower(tmp_path / "nodes", **options) == expected


def test_flower_sends_the_same_bytes_by_default(tmp_path: Path) -> None:
    """Only the first message is shorter: it tells a new node of a spec instead of a plan that says the same at length."""
    expected, digest = in_simulation(DEFAULT, tmp_path / "simulation")
    entries, own_digest = in_flower(tmp_path / "nodes")
    is_first = [entry[0] == 1 and entry[2] == "down" for entry in entries]
    differing = [first for mine, other, first in zip(entries, expected, is_first, strict=True) if mine != other]
    assert differing == [True] * NODES
    assert own_digest == digest
