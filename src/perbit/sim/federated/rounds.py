"""One round of training: down, compute, up, step; every message entered in the book, every stage timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import perbit
from perbit.protocol import Protocol, Server, Worker
from perbit.randomness import fold
from perbit.sim.delivery import deliver_all
from perbit.sim.federated import local, optimiser, tensors
from perbit.sim.federated.ledger import Book
from perbit.sim.federated.optimiser import Moments
from perbit.sim.federated.settings import Task
from perbit.sim.federated.world import World

_CLIENT, _SAMPLE = 3, 4  # purposes of seeds


@dataclass(frozen=True, eq=False)
class Federation:
    """Server and clients between two rounds."""

    server: Server
    workers: tuple[Worker, ...]
    counters: dict[str, Any]  # integer buffers, exact
    moments: Moments = Moments()


@dataclass
class Clock:
    """Measured seconds of one round, for each client and for the server: CPU time, which runs side by side do not stretch."""

    receive: dict[str, float] = field(default_factory=dict)
    compute: dict[str, float] = field(default_factory=dict)
    encode: dict[str, float] = field(default_factory=dict)
    decode: float = 0.0  # all clients' frames, averaged
    server: float = 0.0  # the step, and encoding what goes down


def start(protocol: Protocol, world: World, n_clients: int) -> Federation:
    """Before the first round everybody holds the first model."""
    server, workers = protocol.init(world.first, n_clients)
    return Federation(server, tuple(workers), tensors.counters(world.network))


def one_round(
    protocol: Protocol, world: World, task: Task, seed: int, now: Federation, book: Book
) -> tuple[Federation, Clock, dict[str, Any]]:
    """The next state, the times, and the first client's update for those who study it."""
    key, clock, task = fold(seed, book.round), Clock(), task.in_round(book.round)
    present = _present(task, key)
    now = _down(protocol, now, present, key, book, clock)
    frames, counted, workers = {}, [], list(now.workers)
    sample: dict[str, Any] = {}
    for i in present:
        began = time.thread_time()
        update, counters = _compute(world, task, now, i, fold(fold(key, _CLIENT), i))
        clock.compute[str(i)] = time.thread_time() - began
        frames[i], workers[i] = protocol.respond(workers[i], update, key)
        clock.encode[str(i)] = time.thread_time() - began - clock.compute[str(i)]
        book.add(i, "up", frames[i])
        counted.append(_exactly(counters, i, "up", book))
        sample = sample or update
    return (
        _step(protocol, world, task, replace(now, workers=tuple(workers)), frames, counted, key, clock),
        clock,
        sample,
    )


def _present(task: Task, key: int) -> list[int]:
    if task.present == task.clients:
        return list(range(task.clients))
    drawn = np.random.default_rng(fold(key, _SAMPLE)).choice(task.clients, task.present, replace=False)
    return sorted(int(i) for i in drawn)


def _down(protocol: Protocol, now: Federation, present: list[int], key: int, book: Book, clock: Clock) -> Federation:
    workers, began = list(now.workers), time.thread_time()
    server, delivered = deliver_all(protocol, now.server, workers, present, key)
    seconds = (time.thread_time() - began) / len(present)
    for i, got in delivered.items():
        workers[i] = got.worker
        clock.receive[str(i)] = seconds
        for frame in got.frames:
            book.add(i, "down", frame)
        if got.frames:
            _exactly(now.counters, i, "down", book)
    return replace(now, server=server, workers=tuple(workers))


def _exactly(counters: Mapping[str, Any], client: int, direction: str, book: Book) -> dict[str, Any]:
    """Send integers as they are, in a frame of their own; models without any send none."""
    if not counters:
        return {}
    frame = perbit.dumps(counters, "raw")
    book.add(client, direction, frame)
    return dict(perbit.loads(frame))


def _compute(
    world: World, task: Task, now: Federation, client: int, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the server is to subtract: the way back from where local training led, or a gradient.

    FedAvg's weights are applied here, so that the plain mean of any protocol, with any memories, is the weighted mean.
    """
    network, before = world.network, now.workers[client].model
    tensors.put(network, before)
    tensors.put(network, now.counters)
    if task.trains_locally:
        local.train(network, world.data, world.parts[client], task, seed)
        weight = np.float32(world.weight(client) if task.weights == "samples" else 1)
        update = {name: weight * (before[name] - value) for name, value in tensors.floats(network).items()}
    else:
        local.gradient(network, world.data, world.parts[client], task, seed)
        update = tensors.gradients(network, before)
    return update, tensors.counters(network)


def _step(
    protocol: Protocol,
    world: World,
    task: Task,
    now: Federation,
    frames: dict[int, bytes],
    counted: list[dict[str, Any]],
    key: int,
    clock: Clock,
) -> Federation:
    moments = now.moments

    def optimise(mean: optimiser.F64) -> optimiser.F64:
        nonlocal moments
        clock.decode = time.thread_time() - began
        change, moments = optimiser.step(task, world.mask, now.moments, mean)
        return change

    began = time.thread_time()
    server = protocol.advance(now.server, frames, optimise, key)
    clock.server = time.thread_time() - began - clock.decode
    counters = {name: np.asarray(np.max([c[name] for c in counted], axis=0)) for name in now.counters}
    return replace(now, server=server, counters=counters, moments=moments)
