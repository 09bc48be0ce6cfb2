"""One chain of frames for those in step, and for the others one frame with what they lack of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from perbit.channels import Channel, Direct, Layout, Shifted, State, Summed
from perbit.coding.bits import Piece
from perbit.errors import SpecError
from perbit.kernels.api import F32
from perbit.protocols.downlinks.base import Delivery, Downlink, Start, check_number, first_of, started
from perbit.protocols.downlinks.references import References, Spot


@dataclass(eq=False)
class Chain:
    """The server's side: the chain's newest state and where it and the one before stand in the table of references."""

    state: State
    head: int
    before: int
    references: References


@dataclass(frozen=True)
class Followed(Downlink):
    """Everybody follows one chain, whose memory is the model that clients in step hold.

    A client that missed a round is sent one frame: what it lacks of that model, coded. It then holds an approximation, from which the
    next such frame goes on; so codecs must lose less than they are given, as biased ones do. What clients hold is kept in a
    bounded table; one whose entry has left it is coded against the chain as it last knew it exactly, or sent a full model.

    Args:
        channel: `Summed(...)`, whose memory is that model.
        keep: how many references the table holds at the most, each the size of a model.
    """

    channel: Channel
    keep: int = 42

    def __post_init__(self) -> None:
        check_number("keep", self.keep, 2)
        if not isinstance(self.channel, Summed):
            raise SpecError(f"the clients' model is kept by Summed(...), not by {type(self.channel).__name__}")

    def init(self, layout: Layout, model: F32, n_clients: int | None) -> tuple[Any, Any, Any]:
        sender, receiver = started(self.channel, layout, model)
        references = References(layout, model)
        head = references.add(self._aside(receiver), is_anchor=True)
        references.coded[head] = b"", head, b""  # so that it stays until the first clients have come
        return Chain(sender, head, head, references), Spot(head, head, self.channel.digest(receiver)), (receiver, None)

    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        sent, references = self.channel.send_flat(x, side.state, seed), side.references
        before, head = side.head, references.add(self._aside(sent.state), is_anchor=True)
        references.go_on(sent.value)
        references.coded[before] = sent.frame, head, self.channel.digest(sent.state)
        references.shrink(self.keep)
        return Chain(sent.state, head, before, references), sent.value

    def deliver(self, side: Any, place: Any, number: int, seed: int) -> Delivery:
        references, base = side.references, self._base(side, place)
        if base is None:
            spot = Spot(side.head, side.head, self.channel.digest(side.state))
            references.occupy(spot)
            return Delivery([self.channel.reset(side.state)], side, spot, Start.RESET)
        if base not in references.coded:
            references.coded[base] = self._difference(side, base, seed)
            references.shrink(self.keep)
        frame, to, digest = references.coded[base]
        is_step = base == side.before
        spot = Spot(to if is_step else place.anchor, to, digest)
        references.occupy(spot)
        start = Start.HERE if is_step else Start.ANCHOR if base == place.anchor else Start.ASIDE
        return Delivery([frame], side, spot, start)

    def _base(self, side: Chain, place: Spot | None) -> int | None:
        """From where a client can go on: along the chain if it missed nothing of it, else from where it is, else from its anchor."""
        if place is None:
            return None
        side.references.touch(place)
        known = (place.anchor,) if place.anchor == side.before else (place.at, place.anchor)
        return next((name for name in known if name in side.references), None)

    def _difference(self, side: Chain, base: int, seed: int) -> tuple[bytes, int, bytes]:
        channel = self._channel_aside(side.state.sequence)
        sent = channel.send_flat(side.references.model, side.references.state_of(base), seed)
        return sent.frame, side.references.add(sent.state, is_anchor=False), channel.digest(sent.state)

    def _channel_aside(self, sequence: int) -> Channel:
        return Shifted(Direct(self.channel.plan_at(sequence)), 1.0)

    def _aside(self, state: State) -> State:
        """What a client that leaves the chain here goes on from."""
        return State(state.layout, state.sequence, state.link, (self.channel.shared(state.memory)[0], ()))

    def accept(self, held: Any, frames: list[Piece], start: Start) -> tuple[Any, F32]:
        chain, aside = held
        if start == Start.RESET:
            chain = self.channel.resync(first_of(frames), chain)
            return (chain, None), self.channel.shared(chain.memory)[0]
        if start == Start.HERE:
            value, chain = self.channel.receive_flat(first_of(frames), chain)
            return (chain, None), value
        base = self._aside(chain) if start == Start.ANCHOR or aside is None else aside
        value, aside = self._channel_aside(base.sequence).receive_flat(first_of(frames), base)
        return (chain, aside), value

    def digest_at(self, place: Any) -> bytes:
        return bytes(place.digest)

    def digest_of(self, held: Any) -> bytes:
        chain, aside = held
        return self.channel.digest(chain) if aside is None else self._channel_aside(0).digest(aside)

    def enter(self, side: Any, place: Any) -> None:
        side.references.occupy(place)

    def release(self, side: Any, place: Any) -> None:
        side.references.leave(place)

    def keep_in(self, side: Any, folder: str, is_durable: bool = False) -> None:
        side.references.keep_in(folder, is_durable)

    def shelf_of(self, side: Any) -> Any:
        return side.references.shelf

    def give_way(self, side: Any) -> bool:
        return bool(side.references.give_way())

    def copied(self, side: Any) -> Any:
        return replace(side, references=side.references.copied())
