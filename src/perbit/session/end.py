"""What server and client both hold of one client, and the arithmetic they share."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from perbit import wire
from perbit.bits import Piece
from perbit.channels import State
from perbit.downlinks import started
from perbit.errors import DecodeError
from perbit.session.model import Model, Tensors
from perbit.session.wiring import Wiring


@dataclass(frozen=True, eq=False)
class End:
    """One end of a link: the model the client holds and the state of each channel. The digests of both ends agree."""

    session: bytes  # drawn anew by every server
    sequence: int  # of the last frame down
    wiring: Wiring
    held: Model
    up: State
    down: State

    def digest(self) -> bytes:
        """Eight bytes that differ if the ends differ in the model held, in a memory both keep, or in the frames so far."""
        parts = (
            self.session,
            self.held.checksum.to_bytes(4, "little"),
            self.wiring.up.digest(self.up),
            self.wiring.down.digest(self.down),
        )
        return blake2b(b"".join(parts), digest_size=8).digest()


def first_ends(session: bytes, sequence: int, wiring: Wiring, model: Model) -> tuple[End, End]:
    """The server's and the client's end after a full frame: both know the model, nothing else has happened."""
    up_client, up_server = wiring.up.init(model.layout)
    down_server, down_client = started(wiring.down, model.layout, model.flat)
    server = End(session, sequence, wiring, model, up_server, down_server)
    return server, End(session, sequence, wiring, model, up_client, down_client)


def pack_names(exact: Collection[str]) -> bytes:
    """Which tensors are exact, for a full frame."""
    return json.dumps(list(exact)).encode()


def unpack_names(data: Piece) -> list[str]:
    """What `pack_names` wrote."""
    try:
        names = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"cannot read the names of the exact tensors: {error}") from error
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DecodeError("the names of the exact tensors are no list of names")
    return names


def pack_exact(changed: Mapping[str, Any]) -> bytes:
    """The exact tensors that changed; mostly there are none, and then no bytes."""
    return wire.dumps(changed, "raw") if changed else b""


def unpack_exact(data: Piece, held: Model) -> Tensors:
    """What `pack_exact` wrote, if it fits the model held."""
    if not len(data):
        return {}
    changed = wire.loads(data, max_values=sum(x.size for x in held.exact.values()))
    for name, x in changed.items():
        if name not in held.exact or x.shape != held.exact[name].shape:
            raise DecodeError(f"the frame holds {name!r} with shape {x.shape}, which the model does not")
    return changed
