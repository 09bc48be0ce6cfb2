"""A frame for each client, and one average of all their memories at the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perbit import theory
from perbit.channels import Direct, Layout, Shifted, State
from perbit.channels.kinds import Alpha, rates_by_value
from perbit.coding.bits import Piece
from perbit.errors import SpecError
from perbit.kernels.api import F32
from perbit.plan import PlanLike
from perbit.protocols.downlinks.base import F64, Delivery, Downlink, Start, check_number, first_of, raw_frame, raw_value
from perbit.randomness import fold


@dataclass(frozen=True)
class AveragedServer:
    """H̄ = mean of the clients' H_i as of the last round, what the clients' memories have moved by since, all together, the model, and
    the last reset: its number and its H̄."""

    layout: Layout
    n_clients: int
    memory: F64
    moved: F64
    model: F32
    rounds: int
    resets: int
    snapshot: F32


@dataclass(frozen=True)
class AveragedPlace:
    """What the server knows of a client: its numbered link, which has no memory, and the last reset it has."""

    link: State
    fetched: int


@dataclass(frozen=True)
class AveragedClient:
    """The client's side: its own H_i."""

    link: State
    memory: F32


@dataclass(frozen=True)
class Averaged(Downlink):
    """ŵ_i = H_i + C_i(w - H̄); H_i ← H_i + α·C_i(w - H̄); H̄ ← mean of H_i; every `reset_every` rounds H_i ← H̄, sent raw.

    H̄ moves when the round is over, by the sum over the clients: the order in which they come makes no difference.
    The server holds one memory instead of N (beside the sum, and H̄ as of the last reset, for those who were away then). The clients'
    models are off by H_i - H̄ until the next reset; so are those of clients that did not get a message.

    Args:
        plan: the codecs.
        alpha: as in `Shifted`.
        reset_every: rounds from one reset to the next; by default 4√d for d values, as in the authors' code.
    """

    plan: PlanLike
    alpha: Alpha = None
    reset_every: int | None = None

    def __post_init__(self) -> None:
        if self.reset_every is not None:
            check_number("reset_every", self.reset_every, 1)
        Shifted(self.channel, self.alpha)  # refuses what is no codec, and no rate

    @property
    def channel(self) -> Direct:  # type: ignore[override]
        return Direct(self.plan)

    def init(self, layout: Layout, model: F32, n_clients: int | None) -> tuple[Any, Any, Any]:
        if n_clients is None:
            raise SpecError("an average over all clients needs to know how many there are; give population=...")
        sender, receiver = self.channel.init(layout)
        server = AveragedServer(layout, n_clients, model.astype(np.float64), np.zeros(layout.n), model, 0, 0, model)
        return server, AveragedPlace(sender, 0), AveragedClient(receiver, model)

    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        memory = side.memory + side.moved / side.n_clients
        side = replace(side, memory=memory, moved=np.zeros(x.size), model=x, rounds=side.rounds + 1)
        if side.rounds % (self.reset_every or math.ceil(4 * math.sqrt(x.size))):
            return side, None
        common = side.memory.astype(np.float32)
        return replace(side, memory=common.astype(np.float64), snapshot=common, resets=side.resets + 1), None

    def deliver(self, side: Any, place: Any, number: int, seed: int) -> Delivery:
        layout, frames, start = side.layout, [], Start.HERE
        if place is None or place.fetched < side.resets:
            common = side.snapshot if place is not None else side.memory.astype(np.float32)
            link = place.link if place is not None else self.channel.init(layout)[0]
            frames, start, place = [raw_frame(common)], Start.RESET, AveragedPlace(link, side.resets)
        omega = side.model - side.memory.astype(np.float32)
        sent = self.channel.send_flat(omega, place.link, fold(seed, number))
        step = self._step(sent.value, layout)
        side = replace(side, moved=side.moved + step)
        return Delivery([*frames, sent.frame], side, AveragedPlace(sent.state, place.fetched), start)

    def accept(self, held: Any, frames: list[Piece], start: Start) -> tuple[Any, F32]:
        memory, layout = held.memory, held.link.layout
        if start == Start.RESET:
            memory, frames = raw_value(first_of(frames), layout.n), frames[1:]
        d, link = self.channel.receive_flat(first_of(frames), held.link)
        return AveragedClient(link, memory + self._step(d, layout)), memory + d

    def _step(self, d: F32, layout: Layout) -> F32:
        return (rates_by_value(self.channel, layout) if self.alpha == "tensor" else np.float32(self.rate(layout))) * d

    def digest_at(self, place: Any) -> bytes:
        return self.channel.digest(place.link)

    def digest_of(self, held: Any) -> bytes:
        return self.channel.digest(held.link)

    def rate(self, layout: Layout) -> float:
        """The α in use for this model; the least of them if every tensor has its own."""
        if isinstance(self.alpha, float | int):
            return self.alpha
        return theory.memory_rate(self.channel.omega(layout))
