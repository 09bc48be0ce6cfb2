"""Protocols: a way up, a way down, and what goes down. One round:

    deliver(server, worker)         brings each worker that takes part up to date, counting every frame it is sent
    respond(worker, gradient)       the worker's frame
    advance(server, frames, step)   the server decodes, averages, steps, and makes what goes down next

All are pure functions of values: Server and Worker are states, and a call whose result is dropped has not happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perbit.channels import Channel, Layout, State, Summed
from perbit.channels.store import Store
from perbit.downlinks import Downlink, Shared, store
from perbit.errors import EncodeError
from perbit.kernels.api import F32
from perbit.randomness import fold

F64 = NDArray[np.float64]
_UP, _DOWN = 1, 2  # purposes of seeds


@dataclass(frozen=True, eq=False)
class Server:
    """The server between two rounds."""

    layout: Layout
    model: F64  # flat; the exact model, or what the workers hold if they step with the same compressed update
    uplinks: Store
    downlink: Any
    round: int = 0
    expected: F64 | None = None  # mean of what the uplink memories predict; None: to be computed when needed
    previous: F64 | None = None  # the model before the last step (only the Ghost algorithm looks at it)


@dataclass(frozen=True, eq=False)
class Worker:
    """A worker between two rounds; `point` is the flat model at which it computes its next gradient."""

    index: int
    layout: Layout
    point: F32
    uplink: State
    downlink: Any
    round: int = 0

    @property
    def model(self) -> Any:
        """The point as an array or as named tensors."""
        return self.layout.unflatten(self.point)


class Delivered(NamedTuple):
    """The frames that brought a worker up to date (none if it was), and both states afterwards."""

    frames: list[bytes]
    server: Server
    worker: Worker
    was_reset: bool = False


class Response(NamedTuple):
    """The worker's frame, and its state to keep once the frame is delivered."""

    frame: bytes
    worker: Worker


@dataclass(frozen=True)
class Protocol:
    """How a distributed algorithm sends. `presets` has the ones with a name.

    carries "model":  the downlink takes the server's exact model, and the workers hold what it gives (MCM; with raw: SGD).
    carries "update": the downlink takes the step, the workers add it up; the server steps with the same compressed step
                      ("degraded"), unless `exact` keeps its own model exact.
    carries "ghost":  workers get w_{k-1} + C(step): no message can do that, the simulation lends them w_{k-1}.
    `local_steps` > 0: workers send the difference after so many local steps instead of a gradient (FedAvg).
    """

    name: str
    uplink: Channel
    downlink: Downlink
    carries: Literal["model", "update", "ghost"] = "model"
    exact: bool = False
    local_steps: int = 0
    folder: str | None = None  # keep the server's uplink memories in a file of this folder

    @classmethod
    def of(
        cls, name: str, uplink: Channel, downlink: Channel | Downlink, carries: Any = "model", **more: Any
    ) -> Protocol:
        """A protocol; a channel as downlink is shared by all workers, and adds up where updates are carried."""
        if isinstance(downlink, Channel):
            downlink = Shared(Summed(downlink) if carries == "update" else downlink)
        return cls(name, uplink, downlink, carries, **more)

    def init(self, model: Any, n_workers: int) -> tuple[Server, list[Worker]]:
        """The server and N workers, who all know the first model."""
        layout = Layout.of(model)
        flat = np.array(layout.flatten(model))
        flat.flags.writeable = False
        sender, receiver = self.uplink.init(layout)
        down_server, down_worker = self.downlink.init(layout, flat, n_workers)
        uplinks = store(self.folder, "uplinks", receiver, n_workers)
        server = Server(layout, flat.astype(np.float64), uplinks, down_server)
        return server, [Worker(i, layout, flat, sender, down_worker) for i in range(n_workers)]

    def deliver(self, server: Server, worker: Worker, seed: int) -> Delivered:
        """Send a worker what it lacks."""
        if worker.round == server.round:
            return Delivered([], server, worker)
        sent = self.downlink.deliver(server.downlink, worker.index, worker.downlink, fold(seed, _DOWN))
        point = sent.model
        if self.carries == "ghost" and server.previous is not None:
            point = server.previous.astype(np.float32) + point
        worker = Worker(worker.index, worker.layout, point, worker.uplink, sent.worker, server.round)
        return Delivered(sent.frames, replace(server, downlink=sent.server), worker, sent.was_reset)

    def respond(self, worker: Worker, gradient: Any, seed: int) -> Response:
        """Send a gradient, or w - w_local after local steps: whatever the server is to subtract."""
        sent = self.uplink.send(gradient, worker.uplink, fold(fold(seed, _UP), worker.index))
        after = Worker(worker.index, worker.layout, worker.point, sent.state, worker.downlink, worker.round)
        return Response(sent.frame, after)

    def advance(self, server: Server, frames: Mapping[int, bytes], step: float, seed: int) -> Server:
        """Decode and average the workers' frames in one pass, step, and publish what goes down."""
        if not frames:
            raise EncodeError("a round needs at least one worker; keep the server as it is when none takes part")
        mean, uplinks, expected = self._average(server, frames)
        change = -step * mean
        model = server.model + change
        seed = fold(seed, _DOWN)
        x = (model if self.carries == "model" else change).astype(np.float32)
        downlink, value = self.downlink.publish(server.downlink, x, seed)
        if self.carries == "update" and not self.exact and value is not None:
            model = value.astype(np.float64)
        return Server(server.layout, model, uplinks, downlink, server.round + 1, expected, server.model)

    def _average(self, server: Server, frames: Mapping[int, bytes]) -> tuple[F64, Store, F64 | None]:
        """The mean over all workers. An absent one counts as what its memory predicts; those present speak for all in the rest."""
        everybody = len(frames) == len(server.uplinks)
        expected = None if everybody else self._expected(server)
        total, moved = np.zeros(server.layout.n), np.zeros(server.layout.n)
        changed: dict[int, State] = {}
        for worker, frame in frames.items():
            before = server.uplinks.get(worker)
            value, after = self.uplink.receive(frame, before)
            total += server.layout.flatten(value)
            changed[worker] = after
            h_before, h_after = self.uplink.expectation(before), self.uplink.expectation(after)
            if expected is not None and h_before is not None and h_after is not None:
                total -= h_before
                moved += h_after - h_before
        mean = total / len(frames)
        uplinks = server.uplinks.put(changed)
        if expected is None:
            return mean, uplinks, None
        return expected + mean, uplinks, expected + moved / len(uplinks)

    def _expected(self, server: Server) -> F64 | None:
        if server.expected is not None or self.uplink.expectation(server.uplinks.get(0)) is None:
            return server.expected
        total = np.zeros(server.layout.n)
        for worker in range(len(server.uplinks)):
            h = self.uplink.expectation(server.uplinks.get(worker))
            total += 0 if h is None else h
        return total / len(server.uplinks)
