"""What a way down is: the server's side, what it knows of each client, and the client's own side."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perbit.channels import Channel, Layout, State
from perbit.channels.agreed import read_raw
from perbit.channels.tree import freeze
from perbit.coding.bits import Piece
from perbit.errors import DecodeError, SpecError
from perbit.frame import wire
from perbit.kernels.api import F32

F64 = NDArray[np.float64]


class Start(IntEnum):
    """From where a client applies the frames it is sent."""

    HERE = 0  # from what it holds
    RESET = 1  # the first frame replaces whatever it holds
    ANCHOR = 2  # from the last model it was sent in full (Versions), or from the chain as it last knew it (Followed)
    ASIDE = 3  # from where it is beside the chain (Followed)


class Delivery(NamedTuple):
    """What one client is sent, the server's side afterwards, and the place where the client will be."""

    frames: list[bytes]
    side: Any
    place: Any
    start: Start = Start.HERE


class Downlink(ABC):
    """`publish` and `deliver` are the server's, `accept` is the client's. All give new values."""

    channel: Channel

    @abstractmethod
    def init(self, layout: Layout, model: F32, n_clients: int | None) -> tuple[Any, Any, Any]:
        """For a first model that everybody knows: the server's side, every client's place, and every client's own side."""

    @abstractmethod
    def publish(self, side: Any, x: F32, seed: int) -> tuple[Any, F32 | None]:
        """Send x to everybody; give what they will hold, if that is one and the same."""

    @abstractmethod
    def deliver(self, side: Any, place: Any, number: int, seed: int) -> Delivery:
        """What brings a client up to date. Without a place it holds nothing, and starts anew."""

    @abstractmethod
    def accept(self, held: Any, frames: list[Piece], start: Start) -> tuple[Any, F32]:
        """The client's side after these frames, and its model."""

    @abstractmethod
    def digest_at(self, place: Any) -> bytes:
        """What the server knows of a client's memory, in eight bytes ..."""

    @abstractmethod
    def digest_of(self, held: Any) -> bytes:
        """... and the client's own."""

    def apart(self, held: Any) -> tuple[Any, Any]:
        """A client's side as a part that seldom changes, and the rest; for files."""
        return None, held

    def together(self, seldom: Any, rest: Any) -> Any:
        """What `apart` took apart."""
        return rest

    def enter(self, side: Any, place: Any) -> None:  # noqa: B027  most need not count
        """One more client is at this place, without a delivery."""

    def release(self, side: Any, place: Any) -> None:  # noqa: B027
        """A client is no longer at this place."""

    def keep_in(self, side: Any, folder: str, is_durable: bool = False) -> None:  # noqa: B027  most need no more room
        """The server's side keeps what it has no room for in a file of this folder."""

    def shelf_of(self, side: Any) -> Any:
        """The file that `keep_in` made, if there is one."""
        return None

    def give_way(self, side: Any) -> bool:
        """Let the server's side hold less; whether it could."""
        return False

    def copied(self, side: Any) -> Any:
        """The server's side as a value: what happens to one is not seen in the other."""
        return side


def check_number(name: str, value: object, least: int, most: float = math.inf) -> None:
    if type(value) is not int or not least <= value <= most:
        raise SpecError(f"{name} must be a whole number of at least {least}, got {value!r}")


def first_of(frames: list[Piece]) -> Piece:
    if not frames:
        raise DecodeError("a message that starts anew holds no frame")
    return frames[0]


LONE = "model"  # the name of a lone array in a full frame


def named(layout: Layout, flat: F32) -> dict[str, F32]:
    return {LONE: flat} if layout.is_array else layout.split(flat)


def named_shapes(layout: Layout) -> list[tuple[str, tuple[int, ...]]]:
    return [(LONE, (layout.n,))] if layout.is_array else list(layout.tensors)


def raw_frame(x: F32) -> bytes:
    return wire.write_raw({LONE: x})


def raw_value(frame: Piece, n: int) -> F32:
    return read_raw(frame, {LONE: (n,)})[LONE]


def started(channel: Channel, layout: Layout, model: F32) -> tuple[State, State]:
    """Both ends of a channel whose first shared memory, if any, is a model that both know."""
    ends = []
    for state in channel.init(layout):
        arrays = channel.shared(state.memory)
        memory = channel.with_shared(state.memory, (model, *arrays[1:])) if arrays else state.memory
        ends.append(replace(state, memory=freeze(memory)))
    return ends[0], ends[1]
