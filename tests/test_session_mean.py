"""What a server averages: absent clients count as their memories predict, whichever way the mean is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perbit
from perbit.protocols import presets
from perbit.session import ClientSession, ServerSession, protocol_of
from session_exchange import exchange, noisy, session, small

SHAPE = (40, 30)
PRESENT = [[0, 1, 2], [0], [1, 2], [], [2], [0, 2], [3], [0, 1, 2, 3]]
PREDICTING = ["diana", "ef21", "mcm", "artemis", "dore", "rand_mcm", "rand_mcm_groups", "rand_mcm_averaged"]


def gradient(client: int, round_: int) -> Any:
    drift = np.random.default_rng(client).normal(size=SHAPE)  # a client's own pull, which a memory learns
    return (drift + 0.1 * np.random.default_rng([client, round_]).normal(size=SHAPE)).astype(np.float32)


def one_round(server: ServerSession, clients: list[ClientSession], present: list[int], round_: int) -> list[Any]:
    """What `receive` gives of those present."""
    got = []
    for i in present:
        clients[i].receive(server.send(i))
        got.append(server.receive(i, clients[i].reply(update={"w": gradient(i, round_)})))
    return got


@pytest.mark.parametrize("population", [None, 4])
@pytest.mark.parametrize("name", PREDICTING)
def test_a_plain_mean_of_those_present_is_the_protocols_own_mean(name: str, population: int | None) -> None:
    protocol = small(name)
    server = session(protocol) if name == "rand_mcm_averaged" else session(protocol, population=population)
    clients = [ClientSession() for _ in range(4)]
    server.publish({"w": noisy(0)["w"]})
    for round_, present in enumerate(PRESENT):
        got = one_round(server, clients, present, round_)
        if not got:
            continue
        base = next(reversed(server._bases.values())).reshape(SHAPE)
        wanted = base - server.mean()["w"]
        np.testing.assert_allclose(np.mean([g["w"] for g in got], axis=0), wanted, atol=2e-5)
        server.step(0.1)


@pytest.mark.parametrize("population", [None, 4])
def test_it_is_dianas_formula(population: int | None) -> None:
    """h̄ + mean over those present of g_i - h_i; h_i ← h_i + α(g_i - h_i). Worked out beside the session."""
    server = ServerSession(presets.diana(up="raw", alpha=0.3), 0, population=population)
    clients, memory = [ClientSession() for _ in range(4)], dict[int, Any]()
    server.publish({"w": noisy(0)["w"]})
    for round_, present in enumerate(PRESENT):
        count = population or max(1, len(memory))
        expected = sum(memory.values(), np.zeros(SHAPE)) / count
        if not one_round(server, clients, present, round_):
            continue
        surprises = [gradient(i, round_) - memory.get(i, np.zeros(SHAPE)) for i in present]
        np.testing.assert_allclose(server.mean()["w"], expected + np.mean(surprises, axis=0), atol=1e-5)
        for i, surprise in zip(present, surprises, strict=True):
            memory[i] = memory.get(i, np.zeros(SHAPE)) + 0.3 * surprise
        server.step(0.1)


@pytest.mark.parametrize("name", ["diana", "mcm", "federated"])
def test_ignored_absences_give_each_clients_own_model(name: str) -> None:
    server, clients = (
        ServerSession(protocol_of(name, up="raw", down="raw"), 0, absent="ignored"),
        [ClientSession() for _ in range(4)],
    )
    server.publish({"w": noisy(0)["w"]})
    for round_, present in enumerate(PRESENT):
        got = one_round(server, clients, present, round_)
        for i, reply in zip(present, got, strict=True):
            np.testing.assert_allclose(reply["w"], server.tensors["w"] - gradient(i, round_), atol=1e-5)
        if got:
            server.step(0.1)


def test_without_memories_both_ways_are_the_same() -> None:
    replies = []
    for absent in ("predicted", "ignored"):
        server, clients = session(protocol_of(), absent=absent), [ClientSession() for _ in range(4)]
        server.publish({"w": noisy(0)["w"]})
        replies.append([one_round(server, clients, present, round_) for round_, present in enumerate(PRESENT)])
    assert str(replies[0]) == str(replies[1])


@pytest.mark.parametrize("how", ["resync", "names"])
def test_a_client_that_starts_anew_within_a_round_is_not_counted_twice(how: str) -> None:
    """Its old memory no longer predicts anything: before, it was added to what the client said itself."""
    server, client = ServerSession(presets.diana(up="raw", alpha=0.5), 0), ClientSession()
    other = np.zeros((20, 60), np.float32)
    exchange(server, 0, client, {"w": noisy(0)["w"], "v": other}, None)
    for round_ in range(4):
        client.receive(server.send(0))
        server.receive(0, client.reply(update={"w": gradient(0, round_), "v": other + 1}))
        server.step(0.1)
    held = client.receive(server.send(0))
    if how == "resync":
        held = client.receive(server.resync(0))
    got = server.receive(0, client.reply({"w": held["w"] - gradient(0, 9)}))
    assert got is not None
    np.testing.assert_allclose(server.mean()["w"], gradient(0, 9), atol=1e-5)
    np.testing.assert_allclose(got["w"], server.tensors["w"] - gradient(0, 9), atol=1e-5)
    server.step(0.1)
    held = client.receive(server.send(0))  # and its new memory counts from now on
    server.receive(0, client.reply({"w": held["w"] - gradient(0, 10)}))
    np.testing.assert_allclose(server.mean()["w"], gradient(0, 10), atol=1e-5)


def test_a_client_that_is_forgotten_predicts_nothing() -> None:
    server, clients = ServerSession(presets.diana(up="raw", alpha=1.0), 0), [ClientSession() for _ in range(3)]
    server.publish({"w": noisy(0)["w"]})
    one_round(server, clients, [0, 1, 2], 0)
    server.step(0.1)
    server.forget(1)
    one_round(server, clients, [0], 1)
    server.step(0.1)
    one_round(server, clients, [0], 2)
    expected = (gradient(0, 1) + gradient(2, 0)) / 2 + gradient(0, 2) - gradient(0, 1)
    np.testing.assert_allclose(server.mean()["w"], expected, atol=1e-5)


def test_a_round_without_answers_has_no_mean() -> None:
    server = ServerSession(presets.diana(), 0)
    with pytest.raises(perbit.EncodeError, match="no model yet"):
        server.mean()
    server.publish({"w": noisy(0)["w"]})
    with pytest.raises(perbit.EncodeError, match="at least one client"):
        server.mean()
    with pytest.raises(perbit.EncodeError, match="at least one client"):
        server.step(1.0)
