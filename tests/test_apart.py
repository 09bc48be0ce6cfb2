"""Error feedback whose sender starts apart: what could not be sent waits in the client's own model, and is not trained a second time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from nvflare.apis.dxo import DataKind

import flower_network
from nvflare_federation import Federation, task_of
from perbit.channels import Direct, ErrorFeedback
from perbit.engines.flower import CompressedGrid, perbit_mod
from perbit.errors import SpecError
from perbit.plan import Plan
from perbit.protocols.presets import federated
from perbit.session import ClientSession, ServerSession
from perbit.sim.federated import local, rounds, tensors, world
from perbit.sim.federated.ledger import Book
from perbit.sim.federated.settings import Task

LOSSY = ("topk(0.02)", "sign", "rd(bits=0.3)", "lowrank(1)")
CURVATURE = np.linspace(0.05, 0.9, 1200, dtype=np.float32).reshape(40, 30)


def first() -> dict[str, Any]:
    return {"w": np.random.default_rng(1).normal(size=(40, 30)).astype(np.float32)}


def trained(model: dict[str, Any], centre: float) -> dict[str, Any]:
    """Three steps down a valley, some directions of which are ten times as steep as others."""
    w = model["w"]
    for _ in range(3):
        w = w - np.float32(0.5) * CURVATURE * (w - np.float32(centre))
    return {"w": w}


def own_models(up: str, centres: tuple[float, ...], n_rounds: int, apart: float = 1.0) -> list[Any]:
    """Federated averaging with these clients: what each of them would start to train from after the last round."""
    server = ServerSession(federated(up, "raw", 1.0, apart), seed=0)
    clients, current = [ClientSession() for _ in centres], first()
    for _ in range(n_rounds):
        answers = []
        for name, (client, centre) in enumerate(zip(clients, centres, strict=True)):
            answer = client.reply(trained(client.receive(server.send(name, current)), centre))
            answers.append(server.receive(name, answer))
        current = {"w": np.mean([answer["w"] for answer in answers if answer], axis=0, dtype=np.float32)}
    return [client.receive(server.send(name, current))["w"] for name, client in enumerate(clients)]


def exactly(centres: tuple[float, ...], n_rounds: int) -> Any:
    current = first()
    for _ in range(n_rounds):
        current = {"w": np.mean([trained(current, centre)["w"] for centre in centres], axis=0)}
    return current["w"]


@pytest.mark.parametrize("up", LOSSY)
def test_one_client_trains_as_if_nothing_were_compressed(up: str) -> None:
    (own,) = own_models(up, (1.0,), 8)
    assert np.abs(own - exactly((1.0,), 8)).max() < 1e-4
    (beside,) = own_models(up, (1.0,), 8, apart=0.0)
    assert np.abs(beside - exactly((1.0,), 8)).max() > 0.03


@pytest.mark.parametrize("up", LOSSY)
def test_the_mean_of_all_clients_moves_as_if_nothing_were_compressed(up: str) -> None:
    """Exactly so where gradients are linear: the mean of the clients' own models is what plain averaging has."""
    centres = (-1.0, 0.5, 2.0)
    mean = np.mean(own_models(up, centres, 8), axis=0)
    assert np.abs(mean - exactly(centres, 8)).max() < 1e-4


def test_to_evaluate_a_client_gets_the_servers_model() -> None:
    server, client = ServerSession(federated("topk(0.02)", "raw", 1.0, 1.0), seed=0), ClientSession()
    arrived = server.receive(0, client.reply(trained(client.receive(server.send(0, first())), 1.0)))
    assert arrived is not None
    evaluated = client.receive(server.send(0, arrived), unsent=0.0)["w"]
    assert np.array_equal(evaluated, arrived["w"])
    assert client.reply()  # an acknowledgement moves nothing
    started = client.receive(server.send(0, arrived))["w"]
    assert np.abs(started - trained(first(), 1.0)["w"]).max() < 1e-5


def test_a_client_that_answers_with_some_tensors_keeps_apart_in_these() -> None:
    server, client = ServerSession(federated("topk(0.02)", "raw", 1.0, 1.0), seed=0), ClientSession()
    whole = {**first(), "mine": np.ones(7, np.float32)}
    arrived = server.receive(0, client.reply(trained(client.receive(server.send(0, whole)), 1.0)))
    assert arrived is not None
    started = client.receive(server.send(0, {**arrived, "mine": whole["mine"]}))
    assert np.abs(started["w"] - trained(first(), 1.0)["w"]).max() < 1e-5
    assert np.array_equal(started["mine"], whole["mine"])


def test_in_comparisons_a_weighted_client_starts_where_its_own_training_led(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are multiplied by the client's share of all samples: what it owes is divided by that before it is put into its model."""
    task = Task(data="digits", model="logistic", partition="dirichlet(0.1)", clients=4, local_steps=3, rate=0.1)
    place = world.build(task, 0)
    weights = [place.weight(i) for i in range(4)]
    assert max(weights) > 2 * min(weights) > 0
    starts: list[Any] = []

    def train_as_ever(network: Any, *rest: Any) -> None:
        starts.append(federation.server.state.server.layout.flatten(tensors.floats(network)))
        train(network, *rest)

    train = local.train
    monkeypatch.setattr(local, "train", train_as_ever)
    federation = rounds.Federation(federated(Plan.of("topk(0.02)", small=None), "raw", 1.0, 1.0), place, 4, 0)
    rounds.one_round(federation, place, task, 0, Book(1))
    shared = federation.server.flat.astype(np.float32)
    states = [client.state for client in federation.clients]
    owed = [state.now.up.memory[0] for state in states if state is not None]
    rounds.one_round(federation, place, task, 0, Book(2))
    for start, memory, weight in zip(starts[4:], owed, weights, strict=True):
        assert np.abs(memory).max() > 1e-3
        assert np.abs(shared - start - memory / weight).max() < 1e-6


def test_what_apart_can_be() -> None:
    with pytest.raises(SpecError, match="apart must be a number from 0 to 1"):
        ErrorFeedback(Direct("topk(0.1)"), 1.0, 1.5)


def test_flowers_clients_train_from_their_own_model_and_evaluate_the_servers(tmp_path: Path) -> None:
    network = flower_network.Network(flower_network.app_of(perbit_mod(tmp_path)), nodes=[1])
    grid = CompressedGrid(network, protocol=federated("topk(0.02)", "raw", 1.0, 1.0), seed=0)
    (reply,) = grid.send_and_receive(flower_network.messages(1))
    shared, target = reply.content["arrays"], flower_network.TARGET

    def distance(kind: str) -> float:
        content = RecordDict({"arrays": shared, "config": ConfigRecord({"server-round": 2})})
        (answer,) = grid.send_and_receive([Message(content, 1, kind)])
        return float(answer.content["metrics"]["distance"])

    own = 0.5 * (target + np.float32(0.01))  # one step from zero towards the target of node 1
    assert distance("evaluate") == pytest.approx(np.abs(shared["w"].numpy() - target).mean())
    assert distance("train") == pytest.approx(np.abs(own - target).mean(), rel=1e-4)


def test_nvflares_clients_train_from_their_own_model_and_validate_the_servers(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1, up="topk(0.02)", down="raw", options={"decay": 1.0, "apart": 1.0})
    start, far = np.zeros((40, 50), np.float32), np.random.default_rng(2).normal(size=(40, 50)).astype(np.float32)
    federation.arrived("site-0", federation.down("site-0", task_of({"w": start})))
    shared = federation.up("site-0", federation.answer("site-0", {"w": far})).data
    validated = federation.arrived("site-0", federation.down("site-0", task_of(shared)), task="validate")
    assert np.array_equal(validated["w"], shared["w"])
    federation.up("site-0", federation.answer("site-0", {"accuracy": 0.9}, DataKind.METRICS))
    trained = federation.arrived("site-0", federation.down("site-0", task_of(shared)))
    assert np.abs(trained["w"] - far).max() < 1e-5
