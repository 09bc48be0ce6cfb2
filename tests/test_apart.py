"""Error feedback whose sender starts apart: what could not be sent waits in the client's own model, and is not trained a second time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perbit.channels import Direct, ErrorFeedback
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


def own_models(up: str, centres: tuple[float, ...], n_rounds: int, **more: Any) -> list[Any]:
    """Federated averaging with these clients: what each of them would start to train from after the last round."""
    server = ServerSession(federated(up, "raw", **more), seed=0)
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
    (beside,) = own_models(up, (1.0,), 8, apart=False)
    assert np.abs(beside - exactly((1.0,), 8)).max() > 0.03


@pytest.mark.parametrize("up", LOSSY)
def test_the_mean_of_all_clients_moves_as_if_nothing_were_compressed(up: str) -> None:
    """Exactly so where gradients are linear: the mean of the clients' own models is what plain averaging has."""
    centres = (-1.0, 0.5, 2.0)
    mean = np.mean(own_models(up, centres, 8), axis=0)
    assert np.abs(mean - exactly(centres, 8)).max() < 1e-4


def test_to_evaluate_a_client_gets_the_servers_model() -> None:
    server, client = ServerSession(federated("topk(0.02)", "raw"), seed=0), ClientSession()
    arrived = server.receive(0, client.reply(trained(client.receive(server.send(0, first())), 1.0)))
    assert arrived is not None
    evaluated = client.receive(server.send(0, arrived), unsent=0.0)["w"]
    assert np.array_equal(evaluated, arrived["w"])
    assert client.reply()  # an acknowledgement moves nothing
    started = client.receive(server.send(0, arrived))["w"]
    assert np.abs(started - trained(first(), 1.0)["w"]).max() < 1e-5


def test_a_client_that_answers_with_some_tensors_keeps_apart_in_these() -> None:
    server, client = ServerSession(federated("topk(0.02)", "raw"), seed=0), ClientSession()
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
    federation = rounds.Federation(federated(Plan.of("topk(0.02)", small=None), "raw"), place, 4, 0)
    rounds.one_round(federation, place, task, 0, Book(1))
    shared = federation.server.flat.astype(np.float32)
    states = [client.state for client in federation.clients]
    owed = [state.now.up.memory[0] for state in states if state is not None]
    rounds.one_round(federation, place, task, 0, Book(2))
    for start, memory, weight in zip(starts[4:], owed, weights, strict=True):
        assert np.abs(memory).max() > 1e-3
        assert np.abs(shared - start - memory / weight).max() < 1e-6


def test_what_apart_can_be() -> None:
    with pytest.raises(SpecError, match="apart must be true or false"):
        ErrorFeedback(Direct("topk(0.1)"), 1.0, "yes")  # type: ignore[arg-type]
