"""What a client holds: its model and the states of both channels, now and before its last answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perbit.channels import State
from perbit.errors import StateMismatch
from perbit.kernels.api import F32
from perbit.session.model import Model, Tensors
from perbit.session.terms import Terms


@dataclass(frozen=True, eq=False)
class Held:
    """A client after one message."""

    sequence: int  # of that message
    version: int  # of the server's model
    point: F32  # the model's floats
    exact: Tensors
    up: State
    down: Any
    names: tuple[str, ...] | None = None  # the tensors it answers with; None: all

    def digest(self, terms: Terms) -> bytes:
        """What a frame for this state must have been made against."""
        return terms.digest(terms.uplink.digest(self.up), terms.downlink.digest_of(self.down))

    def model(self, terms: Terms) -> Model:
        return Model(terms.schema, self.point, self.exact)

    def is_like(self, other: Held) -> bool:
        """The same but for its number, as after rounds of evaluation: not worth writing a model."""
        mine, theirs = ((held.point, held.up, held.down) for held in (self, other))
        return all(a is b for a, b in zip(mine, theirs, strict=True))


@dataclass(frozen=True, eq=False)
class Holding:
    """The last two states of a client: the server may know of the last answer, or may not."""

    terms: Terms
    base: Held | None
    now: Held

    def at(self, digest: bytes) -> Held:
        """The state that a frame was made against."""
        found = {held.digest(self.terms): held for held in (self.base, self.now) if held is not None}
        if digest not in found:
            own = " or ".join(known.hex() for known in found)
            raise StateMismatch(f"the frame was made against memory {digest.hex()}, the client's is {own}")
        return found[digest]
