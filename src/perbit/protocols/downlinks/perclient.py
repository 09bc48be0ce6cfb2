"""A memory for each client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from perbit.channels import Channel, Layout, State
from perbit.coding.bits import Piece
from perbit.kernels.api import F32
from perbit.protocols.downlinks.base import Delivery, Downlink, Start, first_of, raw_frame, raw_value, started
from perbit.randomness import fold


@dataclass(frozen=True)
class OwnModel:
    """The server's side: the model that every client is to be sent; for new clients as a frame, with the place it leads to."""

    layout: Layout
    model: F32
    full: tuple[bytes, State] | None = None


@dataclass(frozen=True)
class PerClient(Downlink):
    """A memory for each client, as the randomised MCM has them: the server's are the clients' places.

    The frame is made when the client comes, so a client that was away has nothing to catch up on.
    """

    channel: Channel

    def init(self, layout: Layout, model: F32, n_clients: int | None) -> tuple[Any, Any, Any]:
        sender, receiver = started(self.channel, layout, model)
        return OwnModel(layout, model), sender, receiver

    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        return replace(side, model=x, full=None), None

    def deliver(self, side: Any, place: Any, number: int, seed: int) -> Delivery:
        if place is None:
            frame, first = side.full or (raw_frame(side.model), started(self.channel, side.layout, side.model)[0])
            return Delivery([frame], replace(side, full=(frame, first)), first, Start.RESET)
        sent = self.channel.send_flat(side.model, place, fold(seed, number))
        return Delivery([sent.frame], side, sent.state)

    def accept(self, held: Any, frames: list[Piece], start: Start) -> tuple[Any, F32]:
        if start == Start.RESET:
            point = raw_value(first_of(frames), held.layout.n)
            return started(self.channel, held.layout, point)[1], point
        value, held = self.channel.receive_flat(first_of(frames), held)
        return held, value

    def copied(self, side: Any) -> Any:
        return replace(side, full=None)

    def digest_at(self, place: Any) -> bytes:
        return self.channel.digest(place)

    def digest_of(self, held: Any) -> bytes:
        return self.channel.digest(held)
