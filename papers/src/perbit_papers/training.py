"""Training in which the users' codecs follow a schedule: fits are made from what was to be sent in an epoch, and then held by all users.

`perbit compare` fits in every message. CO₃ refits every few epochs and shares one code a layer; M22's non-adaptive variant freezes its fits
after a boot-up phase. Messages are the real frames of the protocol, without the envelopes of a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from perbit.channels import Channel, Direct, ErrorFeedback
from perbit.kernels.api import F32
from perbit.protocols.protocol import Client, Protocol, Server
from perbit.randomness import fold
from perbit.sim.federated import local, optimiser, tensors, world
from perbit.sim.federated.optimiser import Moments
from perbit.sim.federated.settings import Task
from perbit.sim.federated.statistics import rounds_in_epoch
from perbit.sim.federated.world import World

Refit = Callable[
    [int, dict[str, F32]], Channel | None
]  # after an epoch, with the mean of what was to be sent: the uplink from now on
Watch = Callable[[dict[str, Any]], None]
_CLIENT = 3  # purpose of a seed


def train(
    task: Task, seed: int, uplink: Channel, refit: Refit, watch: Watch = lambda point: None
) -> list[dict[str, Any]]:
    """Train and give a point for every evaluation: epoch, round, accuracy, loss, bytes up and down."""
    run = _Run(task, seed, uplink)
    history = [run.tested(0)]
    for number in range(1, task.rounds + 1):
        run.round(number)
        if number % run.epoch == 0:
            changed = refit(number // run.epoch, run.mean())
            run.protocol = replace(run.protocol, uplink=changed) if changed is not None else run.protocol
        if number % task.evaluate_every == 0 or number == task.rounds:
            history.append(run.tested(number))
            watch(history[-1])
    return history


class _Earliest:
    """What the first calls gave: methods that have sent the same so far train alike, and so need not do it again. All do in the first round."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: dict[tuple[int, bytes], dict[str, F32]] = {}
        self._run: Any = None

    def once(self, seed: int, point: F32, compute: Callable[[], dict[str, F32]]) -> dict[str, F32]:
        """What training from this point with this seed, which says the round and the user, gives."""
        key = seed, blake2b(point.tobytes(), digest_size=16).digest()
        found = self._found.get(key)
        if found is None:
            found = compute()
            if len(self._found) < self.most:
                self._found[key] = found
        return found

    def start(self, run: Any) -> None:
        """Forget what belongs to other runs: those of another task or seed."""
        if run != self._run:
            self._run, self._found = run, {}


_TRAINED = _Earliest(most=8)


@dataclass
class _Run:
    """A server, its clients and the network they share."""

    task: Task
    seed: int
    uplink: Channel

    def __post_init__(self) -> None:
        self.place: World = world.build(self.task, self.seed)
        self.epoch = rounds_in_epoch(self.task, self.place)
        self.protocol = Protocol.of("scheduled", self.uplink, Direct("raw"))
        self.server: Server
        self.clients: list[Client]
        self.server, self.clients = self.protocol.init(self.place.first, self.task.clients)
        _TRAINED.start((repr(self.task), self.seed))
        self.moments, self.bytes_up, self.bytes_down = Moments(), 0, 0
        self._sum, self._count = np.zeros(self.server.layout.n), 0

    def round(self, number: int) -> None:
        key, everybody = fold(self.seed, number), range(self.task.clients)
        self.server, delivered = self.protocol.deliver_all(self.server, self.clients, list(everybody), key)
        frames = {}
        for i in everybody:
            got = delivered[i]
            self.bytes_down += sum(map(len, got.frames))
            update = self._update(got.client, i, fold(fold(key, _CLIENT), i))
            self._sum += self.server.layout.flatten(update) + self._memory(got.client)
            self._count += 1
            frames[i], self.clients[i] = self.protocol.respond(got.client, update, key)
            self.bytes_up += len(frames[i])
        self.server = self.protocol.advance(self.server, frames, self._step, key)

    def _update(self, client: Client, index: int, seed: int) -> dict[str, Any]:
        """A gradient, or the way back from where local training led."""
        network, before = self.place.network, self.server.layout.split(client.point)
        if self.task.trains_locally:
            return _TRAINED.once(seed, client.point, lambda: self._trained(before, index, seed))
        tensors.put(network, before)
        local.gradient(network, self.place.data, self.place.parts[index], self.task, seed)
        return dict(tensors.gradients(network, before))

    def _trained(self, before: dict[str, F32], index: int, seed: int) -> dict[str, F32]:
        tensors.put(self.place.network, before)
        local.train(self.place.network, self.place.data, self.place.parts[index], self.task, seed)
        return {name: before[name] - value for name, value in tensors.floats(self.place.network).items()}

    def _memory(self, client: Client) -> F32 | float:
        uplink = self.protocol.uplink
        if not isinstance(uplink, ErrorFeedback):
            return 0.0
        memory: F32 = client.uplink.memory[0]
        return np.float32(uplink.gamma(self.server.layout)) * memory

    def _step(self, mean: optimiser.F64) -> optimiser.F64:
        change, self.moments = optimiser.step(self.task, self.place.mask, self.moments, mean)
        return change

    def mean(self) -> dict[str, F32]:
        """Of all that was to be sent since this was last asked: g + γm over rounds and users."""
        mean = (self._sum / max(1, self._count)).astype(np.float32)
        self._sum, self._count = np.zeros_like(self._sum), 0
        return self.server.layout.split(mean)

    def tested(self, number: int) -> dict[str, Any]:
        flat = self.server.model.astype(np.float32)
        flat[self.place.variances & (flat < 0)] = 0
        tensors.put(self.place.network, self.server.layout.split(flat))
        accuracy, loss = local.test(self.place.network, self.place.data)
        sent = {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down}
        return {"epoch": number / self.epoch, "round": number, "accuracy": accuracy, "loss": loss, **sent}
