"""The terms of a session: what a server tells a new client about how they talk, as plain JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

from perbit.channels import Channel, Direct, ErrorFeedback, Layout, Momentum, Shifted, Summed, Warmup
from perbit.channels.packing import from_text, to_text
from perbit.coding.arrays import DTYPES, FLOATS
from perbit.coding.bits import Piece
from perbit.errors import DecodeError, SpecError
from perbit.frame.header import MAX_DIMENSIONS
from perbit.plan import Budget, Plan
from perbit.protocols.downlinks import KINDS, Downlink
from perbit.protocols.protocol import Protocol
from perbit.session.model import Schema

_CHANNELS = (Direct, ErrorFeedback, Shifted, Summed, Momentum, Warmup)
_MAX_DEPTH = 16  # of channels around channels
TYPES = (*_CHANNELS, Plan, Budget, *KINDS)


@dataclass(frozen=True, eq=False)
class Terms:
    """What does not change while a client takes part.

    Args:
        session: eight bytes drawn anew by every server, and for every set of tensors.
        incarnation: eight bytes drawn anew also when a session goes on from a saved state, with numbers that it may have used before.
        seed: of all random choices.
        number: of this client; clients with one number draw alike.
        uplink, downlink: how they talk.
        schema: name, dtype and shape of every tensor.
        exact: names of the tensors that are never coded.
    """

    session: bytes
    incarnation: bytes
    seed: int
    number: int
    uplink: Channel
    downlink: Downlink
    schema: Schema
    exact: tuple[str, ...]

    @cached_property
    def layout(self) -> Layout:
        """The tensors that are coded."""
        exact = set(self.exact)
        return Layout(tuple((name, shape) for name, _, shape in self.schema if name not in exact))

    def digest(self, up: bytes, down: bytes) -> bytes:
        """Eight bytes that differ if the ends differ in a memory both keep, or in the frames so far: both channels' digests in one."""
        return blake2b(self.session + up + down, digest_size=8).digest()

    def to_bytes(self) -> bytes:
        return to_text(self).encode()

    @classmethod
    def from_bytes(cls, data: Piece) -> Terms:
        """What `to_bytes` wrote, in a frame from a server."""
        try:
            terms = from_text(bytes(data).decode(), (cls, *TYPES))
        except UnicodeDecodeError as error:
            raise DecodeError(f"the terms of the session are no text: {error}") from error
        if not (isinstance(terms, Terms) and terms._is_sound()):
            raise DecodeError("the terms of the session are not what they should be")
        return terms

    def _is_sound(self) -> bool:
        kinds = ((self.session, bytes), (self.incarnation, bytes), (self.seed, int), (self.number, int))
        if not all(isinstance(value, kind) for value, kind in (*kinds, (self.schema, tuple), (self.exact, tuple))):
            return False
        if not (all(map(_is_tensor, self.schema)) and all(isinstance(name, str) for name in self.exact)):
            return False
        dtypes, exact = {name: dtype for name, dtype, _ in self.schema}, set(self.exact)
        return (
            len(dtypes) == len(self.schema)
            and exact <= dtypes.keys()
            and all(dtype in FLOATS for name, dtype in dtypes.items() if name not in exact)
            and isinstance(self.downlink, Downlink)
            and _is_channel(self.uplink)
            and _is_channel(self.downlink.channel)
        )


def _is_tensor(part: Any) -> bool:
    """A name, a dtype and a shape."""
    if not (isinstance(part, tuple) and len(part) == 3 and isinstance(part[0], str) and isinstance(part[2], tuple)):
        return False
    name, dtype, shape = part
    return (
        name != ""
        and dtype in DTYPES
        and len(shape) <= MAX_DIMENSIONS
        and all(type(n) is int and n >= 0 for n in shape)
    )


def _is_channel(channel: Any) -> bool:
    """A channel that is not wound around another one without end."""
    for _ in range(_MAX_DEPTH):
        if not (isinstance(channel, Channel) and channel.numbered is True):
            return False
        if not hasattr(channel, "inner"):
            return True
        channel = channel.inner
    return False


def check_sendable(protocol: Protocol) -> None:
    """Refuse a protocol that no session can run, before anything is sent."""
    if protocol.carries == "ghost":
        raise SpecError("ghost lends the clients a model that no frame carries; it runs in simulations only")
    if not (protocol.uplink.numbered and protocol.downlink.channel.numbered):
        raise SpecError("a session needs numbered frames, to notice lost and repeated ones; leave out numbered=False")
    ends = protocol.uplink, protocol.downlink
    try:
        described = from_text(to_text(ends), TYPES)
    except DecodeError as error:
        raise SpecError(f"a session cannot tell its clients of the protocol {protocol.name}: {error}") from error
    if described != ends:
        raise SpecError(f"a session cannot tell its clients of the protocol {protocol.name}: it has parts of its own")
