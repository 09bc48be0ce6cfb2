"""The model against what each client holds: one frame, however long it was away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perbit.channels import Channel, Layout, Shifted, State
from perbit.channels.agreed import read_planned
from perbit.coding.bits import Piece
from perbit.errors import SpecError
from perbit.kernels.api import F32
from perbit.plan import PlanLike, as_plan, dumps
from perbit.protocols.downlinks.base import (
    LONE,
    Delivery,
    Downlink,
    Start,
    check_number,
    first_of,
    named,
    named_shapes,
    started,
)
from perbit.protocols.downlinks.references import References, Spot

_NEW = -1  # in `coded`: from nothing, a full model


@dataclass(frozen=True)
class Versions(Downlink):
    """ŵ = h + C(w - h), where h is what the client holds already: one frame brings a client up to date, however long it was away.

    The server keeps a bounded table of references. Clients with the same reference get the same frame, coded once. A client whose
    reference has left the table is coded against its anchor, the last model it was sent in full, which clients keep too; only when
    that has left the table as well is it sent a full model again.

    Args:
        channel: `Shifted(Direct(...))`, whose memory is h.
        first: the codecs of full models; "raw" is exact.
        keep: how many references the table holds at the most, each the size of a model.
    """

    channel: Channel
    first: PlanLike = "raw"
    keep: int = 42

    def __post_init__(self) -> None:
        check_number("keep", self.keep, 2)
        as_plan(self.first)
        if not isinstance(self.channel, Shifted):
            raise SpecError(f"references are kept by Shifted(...), not by {type(self.channel).__name__}")

    def init(self, layout: Layout, model: F32, n_clients: int | None) -> tuple[Any, Any, Any]:
        state = started(self.channel, layout, model)[1]
        side = References(layout, model)
        name, digest = side.add(state, is_anchor=True), self.channel.digest(state)
        side.coded[_NEW] = b"", name, digest  # so that it stays until the first clients have come
        return side, Spot(name, name, digest), (state, state)

    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        side.go_on(x)
        return side, None

    def deliver(self, side: Any, place: Any, number: int, seed: int) -> Delivery:
        base, start = self._base(side, place)
        if place is not None:
            side.touch(place)
        if base not in side.coded:
            side.coded[base] = self._full(side) if base == _NEW else self._step(side, base, seed)
            side.shrink(self.keep)
        frame, to, digest = side.coded[base]
        spot = Spot(to if base == _NEW else place.anchor, to, digest)
        side.occupy(spot)
        return Delivery([frame], side, spot, start)

    def _base(self, side: References, place: Spot | None) -> tuple[int, Start]:
        """From where a client can go on."""
        if place is not None and place.at in side:
            return place.at, Start.HERE
        if place is not None and place.anchor in side:
            return place.anchor, Start.ANCHOR
        return _NEW, Start.RESET

    def _step(self, side: References, base: int, seed: int) -> tuple[bytes, int, bytes]:
        sent = self.channel.send_flat(side.model, side.state_of(base), seed)
        return sent.frame, side.add(sent.state, is_anchor=False), self.channel.digest(sent.state)

    def _full(self, side: References) -> tuple[bytes, int, bytes]:
        frame = dumps(named(side.layout, side.model), self.first, seed=0)
        state = self._anchored(side.layout, frame)
        return frame, side.add(state, is_anchor=True), self.channel.digest(state)

    def _anchored(self, layout: Layout, frame: Piece) -> State:
        """What both ends hold after a full model."""
        tensors = read_planned(frame, dict(named_shapes(layout)), self.first)
        flat = layout.flatten(tensors[LONE] if layout.is_array else tensors)
        return started(self.channel, layout, flat)[1]

    def accept(self, held: Any, frames: list[Piece], start: Start) -> tuple[Any, F32]:
        anchor, at = held
        if start == Start.RESET:
            anchor = self._anchored(at.layout, first_of(frames))
            return (anchor, anchor), self.channel.shared(anchor.memory)[0]
        value, at = self.channel.receive_flat(first_of(frames), anchor if start == Start.ANCHOR else at)
        return (anchor, at), value

    def digest_at(self, place: Any) -> bytes:
        return bytes(place.digest)

    def digest_of(self, held: Any) -> bytes:
        return self.channel.digest(held[1])

    def apart(self, held: Any) -> tuple[Any, Any]:
        anchor, at = held
        return anchor, None if at is anchor else at

    def together(self, seldom: Any, rest: Any) -> Any:
        return seldom, seldom if rest is None else rest

    def enter(self, side: Any, place: Any) -> None:
        side.occupy(place)

    def release(self, side: Any, place: Any) -> None:
        side.leave(place)

    def keep_in(self, side: Any, folder: str, is_durable: bool = False) -> None:
        side.keep_in(folder, is_durable)

    def shelf_of(self, side: Any) -> Any:
        return side.shelf

    def give_way(self, side: Any) -> bool:
        return bool(side.give_way())

    def copied(self, side: Any) -> Any:
        return side.copied()
