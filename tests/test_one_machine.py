"""The same round machine everywhere: a simulation of the core and a session with real frames end in the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perbit.protocols import presets
from perbit.protocols.protocol import Protocol
from perbit.randomness import fold
from perbit.session import ClientSession, ServerSession

SEED, ROUNDS, N_CLIENTS, STEP = 7, 14, 5, 0.1
SHAPES = {"conv": (12, 10, 3, 3), "bias": (12,), "fc": (40, 30)}
SENDABLE = [name for name in presets.PRESETS if name != "ghost"]


def preset(name: str) -> Protocol:
    more: dict[str, Any] = {"warmup_rounds": 2} if name == "deep_gradient_compression" else {}
    return presets.protocol_of(name, **(more | ({"reset_every": 5} if name == "rand_mcm_averaged" else {})))


def tensors(rng: np.random.Generator, scale: float = 1.0) -> dict[str, Any]:
    return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


class Game:
    """Who takes part in a round, and the gradients: the pull towards a centre of one's own, and noise."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.first = tensors(rng, 0.1)
        self.centres = [tensors(rng) for _ in range(N_CLIENTS)]
        self.present = [sorted(rng.choice(N_CLIENTS, rng.integers(1, N_CLIENTS), replace=False)) for _ in range(ROUNDS)]

    def gradient(self, client: int, round_number: int, model: dict[str, Any]) -> dict[str, Any]:
        noise = tensors(np.random.default_rng([client, round_number]), 0.1)
        return {name: model[name] - self.centres[client][name] + noise[name] for name in model}


def simulated(protocol: Protocol, game: Game) -> tuple[Any, list[Any]]:
    server, clients = protocol.init(game.first, N_CLIENTS)
    for k, present in enumerate(game.present):
        seed, frames = fold(SEED, k), {}
        server, delivered = protocol.deliver_all(server, clients, present, seed)
        for i in present:
            clients[i] = delivered[i].client
            frames[int(i)], clients[i] = protocol.respond(clients[i], game.gradient(i, k, clients[i].model), seed)
        server = protocol.advance(server, frames, STEP, seed)
    return server.model, [client.point for client in clients]


def in_session(protocol: Protocol, game: Game) -> tuple[Any, list[Any]]:
    server = ServerSession(protocol, SEED, population=N_CLIENTS)
    clients = [ClientSession() for _ in range(N_CLIENTS)]
    held: list[Any] = [None] * N_CLIENTS
    for i, client in enumerate(clients):  # in a simulation everybody knows the first model
        held[i] = client.receive(server.send(i, game.first))
        assert server.receive(i, client.reply()) is None
    for k, present in enumerate(game.present):
        for i in map(int, present):
            held[i] = clients[i].receive(server.send(i))
            server.receive(i, clients[i].reply(update=game.gradient(i, k, held[i])))
            assert server.digest(i) == clients[i].digest
        server.step(STEP)
    return server.flat, [np.concatenate([x.reshape(-1) for x in tensors.values()]) for tensors in held]


@pytest.mark.parametrize("name", SENDABLE)
def test_a_simulation_and_a_session_end_in_the_same_bits(name: str) -> None:
    game = Game()
    model, points = simulated(preset(name), game)
    other_model, other_points = in_session(preset(name), game)
    assert model.tobytes() == other_model.tobytes()
    for mine, theirs in zip(points, other_points, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert np.isfinite(model).all()
    assert np.abs(model - np.concatenate([x.reshape(-1) for x in game.first.values()])).max() > 0.01
