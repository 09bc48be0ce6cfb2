"""One chain of frames for everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from perbit.channels import Channel, Layout, State
from perbit.coding.bits import Piece
from perbit.errors import SpecError, StateMismatch
from perbit.kernels.api import F32
from perbit.protocols.downlinks.base import Delivery, Downlink, Start, check_number, first_of, started
from perbit.randomness import fold

CatchUp = Literal["cheapest", "replay", "reset"]
MAX_GROUPS = 1 << 16
_RESET_HEAD = 256  # more than the head of a reset frame takes


@dataclass(frozen=True)
class Position:
    """A client's place on a chain: the number of its next frame, and the digest of the memory it then has."""

    sequence: int
    digest: bytes


@dataclass(frozen=True)
class Broadcast:
    """The server's side of one shared memory: the newest frames, the state before and after the last one."""

    state: State
    before: State
    position: Position
    frames: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Shared(Downlink):
    """One memory for everybody, or for each of `groups` groups (client i belongs to group i mod G).

    Args:
        channel: what the frames are made with.
        groups: how many memories there are.
        catch_up: how those who were away are helped: by whatever costs fewer bytes, always by replay while the frames are kept,
            or always by a reset and the last frame.
        keep: so many frames are kept for them.
    """

    channel: Channel
    groups: int = 1
    catch_up: CatchUp = "cheapest"
    keep: int = 256

    def __post_init__(self) -> None:
        check_number("groups", self.groups, 1, MAX_GROUPS)
        check_number("keep", self.keep, 1)
        if self.catch_up not in get_args(CatchUp):
            raise SpecError(f"catch_up is one of {', '.join(get_args(CatchUp))}, got {self.catch_up!r}")

    def init(self, layout: Layout, model: F32, n_clients: int | None) -> tuple[Any, Any, Any]:
        sender, receiver = started(self.channel, layout, model)
        link = Broadcast(sender, sender, self._position(sender))
        return (link,) * self.groups, link.position, receiver

    def _position(self, state: State) -> Position:
        return Position(state.sequence, self.channel.digest(state))

    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        after, value = [], None
        for group, link in enumerate(side):
            sent = self.channel.send_flat(x, link.state, fold(seed, group))
            frames = self._kept((*link.frames, sent.frame), sent.state)
            after.append(Broadcast(sent.state, link.state, self._position(sent.state), frames))
            value = sent.value
        return tuple(after), value if self.groups == 1 else None

    def _kept(self, frames: tuple[bytes, ...], state: State) -> tuple[bytes, ...]:
        """The newest frames; none that could only be part of a replay dearer than a reset."""
        frames = frames[-self.keep :]
        if self.catch_up == "replay":
            return frames
        room = 4 * state.layout.n * len(self.channel.shared(state.memory)) + _RESET_HEAD
        first = len(frames) - 1
        while first > 0 and (room := room - len(frames[first - 1])) >= 0:
            first -= 1
        return frames[first:]

    def deliver(self, side: Any, place: Any, number: int, seed: int) -> Delivery:
        link: Broadcast = side[number % self.groups]
        missed = link.state.sequence - place.sequence if place is not None else len(link.frames) + 1
        frames, start = list(link.frames[-missed:]), Start.HERE
        if (missed > 1 and self.catch_up != "replay") or missed > len(link.frames):
            reset = [self.channel.reset(link.before), *link.frames[-1:]]
            if self.catch_up == "reset" or missed > len(link.frames) or _total(reset) < _total(frames):
                frames, start = reset, Start.RESET
        return Delivery(frames, side, link.position, start)

    def accept(self, held: Any, frames: list[Piece], start: Start) -> tuple[Any, F32]:
        if start == Start.RESET:
            held, frames = self.channel.resync(first_of(frames), held), frames[1:]
        value, held = self.channel.replay(frames, held)
        if value is None:
            raise StateMismatch("the message holds no frame that is new to this client")
        return held, held.layout.flatten(value)

    def digest_at(self, place: Any) -> bytes:
        return bytes(place.digest)

    def digest_of(self, held: Any) -> bytes:
        return self.channel.digest(held)


def _total(frames: list[bytes]) -> int:
    return sum(map(len, frames))
