"""Ways down: how the server's model reaches the workers, and how a worker that was away catches up.

Shared(channel)      one frame a round for everybody (or for each of G groups); absent workers replay or are reset
PerWorker(channel)   a frame and a memory of its own for each worker, made when the worker comes (Rand-MCM)
Averaged(codec)      a frame for each worker, but one averaged memory at the server, and resets now and then
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perbit import theory
from perbit.channels import Channel, Direct, Layout, State
from perbit.channels.base import freeze
from perbit.channels.store import InMemory, OnDisk, Store
from perbit.kernels.api import F32
from perbit.randomness import fold

F64 = NDArray[np.float64]
CatchUp = Literal["cheapest", "replay", "reset"]


class Delivery(NamedTuple):
    """What one worker was sent, the server's and the worker's side afterwards, and the worker's new model."""

    frames: list[bytes]
    server: Any
    worker: Any
    model: F32
    was_reset: bool = False


class Downlink(ABC):
    """`publish` makes what all workers get, `deliver` brings one worker up to date. Both give new values."""

    @abstractmethod
    def init(self, layout: Layout, model: F32, n_workers: int) -> tuple[Any, Any]:
        """The server's side, and the side every worker starts with."""

    @abstractmethod
    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        """Send x to everybody; give what they will hold, if that is one and the same."""

    @abstractmethod
    def deliver(self, side: Any, worker: int, held: Any, seed: int) -> Delivery: ...


@dataclass(frozen=True)
class Broadcast:
    """The server's side of one shared memory: the newest frames, the state before and after the last one."""

    state: State
    before: State
    frames: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Shared(Downlink):
    """One memory for everybody, or for each of `groups` groups (worker i belongs to group i mod G).

    The newest `keep` frames are kept for those who were away. `catch_up` says how they are helped: by whatever costs
    fewer bytes, always by replay while the frames are kept, or always by a reset and the last frame.
    """

    channel: Channel
    groups: int = 1
    catch_up: CatchUp = "cheapest"
    keep: int = 256

    def init(self, layout: Layout, model: F32, n_workers: int) -> tuple[Any, Any]:
        sender, receiver = started(self.channel, layout, model)
        return tuple(Broadcast(sender, sender) for _ in range(self.groups)), receiver

    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        after, value = [], None
        for group, link in enumerate(side):
            sent = self.channel.send(link.state.layout.unflatten(x), link.state, fold(seed, group))
            after.append(Broadcast(sent.state, link.state, (*link.frames[1 - self.keep :], sent.frame)))
            value = link.state.layout.flatten(sent.value)
        return tuple(after), value if self.groups == 1 else None

    def deliver(self, side: Any, worker: int, held: Any, seed: int) -> Delivery:
        link: Broadcast = side[worker % self.groups]
        missed = link.state.sequence - held.sequence
        frames, was_reset = list(link.frames[-missed:]), False
        if (missed > 1 and self.catch_up != "replay") or missed > len(link.frames):
            reset = [self.channel.reset(link.before), link.frames[-1]]
            if self.catch_up == "reset" or missed > len(link.frames) or _total(reset) < _total(frames):
                frames, was_reset = reset, True
                held = self.channel.resync(reset[0], held)
        value, held = self.channel.replay(frames[1:] if was_reset else frames, held)
        return Delivery(frames, side, held, held.layout.flatten(value), was_reset)


def _total(frames: list[bytes]) -> int:
    return sum(map(len, frames))


@dataclass(frozen=True)
class OwnLinks:
    """The server's side of per-worker memories, and the model they are to be sent."""

    states: Store
    model: F32


@dataclass(frozen=True)
class PerWorker(Downlink):
    """A memory for each worker, as the randomised MCM has them; with `folder` they live in a file there, not in memory.

    The frame is made when the worker comes, so a worker that was away has nothing to catch up on.
    """

    channel: Channel
    folder: str | None = None

    def init(self, layout: Layout, model: F32, n_workers: int) -> tuple[Any, Any]:
        sender, receiver = started(self.channel, layout, model)
        return OwnLinks(store(self.folder, "downlinks", sender, n_workers), model), receiver

    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        return replace(side, model=x), None

    def deliver(self, side: Any, worker: int, held: Any, seed: int) -> Delivery:
        layout = held.layout
        sent = self.channel.send(layout.unflatten(side.model), side.states.get(worker), fold(seed, worker))
        value, held = self.channel.receive(sent.frame, held)
        side = replace(side, states=side.states.put({worker: sent.state}))
        return Delivery([sent.frame], side, held, layout.flatten(value))


def store(folder: str | None, name: str, first: State, n_workers: int) -> Store:
    """States of N workers: in memory, or in a file of this folder."""
    return InMemory([first] * n_workers) if folder is None else OnDisk(Path(folder) / f"{name}.f32", first, n_workers)


@dataclass(frozen=True)
class AveragedServer:
    """H̄ = mean of the workers' H_i, the model, numbered links without memory, and the last reset: its number and its H̄."""

    links: Store
    memory: F64
    model: F32
    rounds: int
    resets: int
    snapshot: F32
    fetched: tuple[int, ...]  # for each worker: the last reset it has


@dataclass(frozen=True)
class AveragedWorker:
    """The worker's side: its own H_i."""

    link: State
    memory: F32


@dataclass(frozen=True)
class Averaged(Downlink):
    """ŵ_i = H_i + C_i(w - H̄); H_i ← H_i + α·C_i(w - H̄); H̄ ← mean of H_i; every `reset_every` rounds H_i ← H̄, sent raw.

    The server holds one memory instead of N (and H̄ as of the last reset, for those who were away then). The workers'
    models are off by H_i - H̄ until the next reset.
    """

    plan: str
    alpha: float | None = None
    reset_every: int = 100

    @property
    def channel(self) -> Direct:
        return Direct(self.plan)

    def init(self, layout: Layout, model: F32, n_workers: int) -> tuple[Any, Any]:
        sender, receiver = self.channel.init(layout)
        links = InMemory([sender] * n_workers)
        server = AveragedServer(links, model.astype(np.float64), model, 0, 0, model, (0,) * n_workers)
        return server, AveragedWorker(receiver, model)

    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        side = replace(side, model=x, rounds=side.rounds + 1)
        if side.rounds % self.reset_every:
            return side, None
        common = side.memory.astype(np.float32)
        return replace(side, memory=common.astype(np.float64), snapshot=common, resets=side.resets + 1), None

    def deliver(self, side: Any, worker: int, held: Any, seed: int) -> Delivery:
        layout, frames = held.link.layout, []
        due = side.fetched[worker] < side.resets
        if due:
            fetched = tuple(side.resets if i == worker else old for i, old in enumerate(side.fetched))
            frames.append(_raw_frame(side.snapshot))
            side, held = replace(side, fetched=fetched), replace(held, memory=_raw_value(frames[0], side.snapshot.size))
        omega = side.model - side.memory.astype(np.float32)
        sent = self.channel.send(layout.unflatten(omega), side.links.get(worker), fold(seed, worker))
        value, link = self.channel.receive(sent.frame, held.link)
        d = layout.flatten(value)
        step = np.float32(self.rate(layout)) * d
        memory = side.memory + step.astype(np.float64) / len(side.links)
        side = replace(side, links=side.links.put({worker: sent.state}), memory=memory)
        return Delivery(
            [*frames, sent.frame], side, AveragedWorker(link, held.memory + step), held.memory + d, was_reset=due
        )

    def rate(self, layout: Layout) -> float:
        """The α in use for this model."""
        return theory.memory_rate(self.channel.omega(layout)) if self.alpha is None else self.alpha


_RAW = Direct("raw", numbered=False)


def _raw_frame(x: F32) -> bytes:
    return _RAW.send(x, _RAW.init(x.size)[0], 0).frame


def _raw_value(frame: bytes, n: int) -> F32:
    value: F32 = _RAW.receive(frame, _RAW.init(n)[1])[0]
    return value


def started(channel: Channel, layout: Layout, model: F32) -> tuple[State, State]:
    """Both ends of a channel whose first shared memory, if any, is a model that both know."""
    ends = []
    for state in channel.init(layout):
        arrays = channel.shared(state.memory)
        memory = channel.with_shared(state.memory, (model.copy(), *arrays[1:])) if arrays else state.memory
        ends.append(replace(state, memory=freeze(memory)))
    return ends[0], ends[1]
