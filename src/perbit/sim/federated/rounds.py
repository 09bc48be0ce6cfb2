"""One round of training: down, compute, up, step, by the very sessions that engines run; every message entered in the book."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perbit.protocols.protocol import Protocol
from perbit.randomness import fold
from perbit.session import ClientSession, ServerSession
from perbit.session.held import Held, Holding
from perbit.session.once import Once
from perbit.session.server import STATE_TYPES as SERVER_TYPES
from perbit.session.server import ServerState
from perbit.sim.federated import diagnosis, local, optimiser, tensors
from perbit.sim.federated.ledger import Book
from perbit.sim.federated.optimiser import Moments
from perbit.sim.federated.settings import Task
from perbit.sim.federated.world import World

_CLIENT, _SAMPLE = 3, 4  # purposes of seeds


@dataclass(frozen=True, eq=False)
class FederationState:
    """Server and clients between two rounds, as a value."""

    server: ServerState
    clients: tuple[Holding | None, ...]
    moments: Moments


STATE_TYPES = (FederationState, Moments, Held, Holding, *SERVER_TYPES)


class Federation:
    """A server and its clients in one process: sessions whose frames are handed over in memory."""

    def __init__(self, protocol: Protocol, world: World, n_clients: int, seed: int) -> None:
        self.shared = Once()
        self.server = ServerSession(protocol, seed, population=n_clients, absent="ignored")
        self.clients = [ClientSession(shared=self.shared) for _ in range(n_clients)]
        self.moments = Moments()
        self.server.publish({**world.first, **tensors.counters(world.network, world.masked)})

    @property
    def state(self) -> FederationState:
        return FederationState(self.server.state, tuple(client.state for client in self.clients), self.moments)

    @state.setter
    def state(self, state: FederationState) -> None:
        self.server.state, self.moments = state.server, state.moments
        for client, held in zip(self.clients, state.clients, strict=True):
            client.state = held


@dataclass
class Clock:
    """Measured seconds of one round, for each client and for the server: CPU time, which runs side by side do not stretch."""

    receive: dict[str, float] = field(default_factory=dict)
    compute: dict[str, float] = field(default_factory=dict)
    encode: dict[str, float] = field(default_factory=dict)
    decode: float = 0.0  # all clients' frames, averaged
    server: float = 0.0  # the step, and encoding what goes down


class _Watch:
    """Seconds since the last look."""

    def __init__(self) -> None:
        self.last = time.thread_time()

    def lap(self) -> float:
        now = time.thread_time()
        passed, self.last = now - self.last, now
        return passed


def one_round(federation: Federation, world: World, task: Task, seed: int, book: Book) -> tuple[Clock, dict[str, Any]]:
    """Move the federation on by a round; the times, and the first client's update for those who study it."""
    key, clock, task = fold(seed, book.round), Clock(), task.in_round(book.round)
    server, counted = federation.server, []
    sample: dict[str, Any] = {}
    federation.shared.clear()  # what was decoded in the last round is of no use to others any more
    for i in present(task, seed, book.round):
        client, watch = federation.clients[i], _Watch()
        frame = server.send(i)
        clock.server += watch.lap()
        book.add(i, "down", frame)
        watch.lap()
        received = client.receive(frame, _unsent(world, task, i))
        clock.receive[str(i)] = watch.lap()
        update, counters = _compute(world, task, received, i, fold(fold(key, _CLIENT), i))
        clock.compute[str(i)] = watch.lap()
        diagnosis.check(world, task, i, received, update)
        watch.lap()
        answer = client.reply(update=update, exact=counters)
        clock.encode[str(i)] = watch.lap()
        book.add(i, "up", answer)
        watch.lap()
        arrived = server.receive(i, answer) or {}
        clock.decode += watch.lap()
        counted.append({name: arrived[name] for name in counters})
        sample = sample or update
    _step(federation, world, task, counted, clock)
    return clock, sample


def present(task: Task, seed: int, number: int) -> list[int]:
    """The clients that take part in a round."""
    if task.present == task.clients:
        return list(range(task.clients))
    key = fold(seed, number)
    drawn = np.random.default_rng(fold(key, _SAMPLE)).choice(task.clients, task.present, replace=False)
    return sorted(int(i) for i in drawn)


def _weight(world: World, task: Task, client: int) -> float:
    """By what the client's update is multiplied, so that the plain mean of any protocol, with any memories, is FedAvg's weighted one."""
    return world.weight(client) if task.weights == "samples" and task.trains_locally else 1.0


def _unsent(world: World, task: Task, client: int) -> float:
    """How much of what it could not send is in the model that a client trains: what undoes its weight. Gradients are of the shared model."""
    weight = _weight(world, task, client)
    return 1 / weight if task.trains_locally and weight else 0.0


def _compute(
    world: World, task: Task, received: Mapping[str, Any], client: int, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the server is to subtract: the way back from where local training led, or a gradient; and the counters."""
    network = world.network
    tensors.put(network, received)
    before = {name: received[name] for name in world.first}
    if task.trains_locally:
        local.train(network, world.data, world.parts[client], task, seed)
        weight = np.float32(_weight(world, task, client))
        update = {
            name: weight * (before[name] - value) for name, value in tensors.floats(network, world.masked).items()
        }
    else:
        local.gradient(network, world.data, world.parts[client], task, seed)
        update = tensors.gradients(network, before, world.masked)
    return update, tensors.counters(network, world.masked)


def _step(federation: Federation, world: World, task: Task, counted: list[dict[str, Any]], clock: Clock) -> None:
    moments = federation.moments

    def optimise(mean: optimiser.F64) -> optimiser.F64:
        nonlocal moments
        change, moments = optimiser.step(task, world.mask, federation.moments, mean)
        return change

    watch = _Watch()
    counters = {name: np.asarray(np.max([c[name] for c in counted], axis=0)) for name in counted[0]}
    federation.server.step(optimise, counters)
    federation.moments = moments
    clock.server += watch.lap()
