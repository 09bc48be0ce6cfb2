"""What a server knows of its clients, and a whole session as a value."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from perbit.channels.store import STATE_TYPES as STORE_TYPES
from perbit.kernels.api import F32
from perbit.protocols import protocol as protocol_module
from perbit.protocols.protocol import Server
from perbit.session.model import Model, Tensors
from perbit.session.terms import TYPES, Terms

ClientId = Hashable


@dataclass(frozen=True, slots=True)
class Known:
    """A client that has answered: to which message, the version of the model it holds, and the tensors it answers with (None: all)."""

    sequence: int
    version: int
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that waits for its answer: where the client is then, and the digest it must answer with."""

    sequence: int
    version: int
    place: Any
    digest: bytes
    names: tuple[str, ...] | None  # the tensors it answers with unless it says otherwise


@dataclass(frozen=True, eq=False)
class ServerState:
    """A session between two rounds: everything that is needed to go on."""

    server: Server
    model: Model
    first: bytes  # the model as it goes to new clients, while it is the first one
    terms: Terms
    sequence: int
    n_resyncs: int
    clients: dict[Any, Known]
    bases: dict[int, F32]
    exact: dict[int, Tensors]
    norms: tuple[float, ...] = ()  # of the latest updates
    pending: dict[Any, Pending] = field(default_factory=dict)


STATE_TYPES = (ServerState, Known, Pending, Model, Terms, *TYPES, *STORE_TYPES, *protocol_module.STATE_TYPES)


def number_of(client: ClientId) -> int:
    """The number under which a client draws: its own if it is one, otherwise a hash of its name."""
    name = plain(client)
    is_number = isinstance(name, int) and not isinstance(name, bool)
    return int(name) & 0xFFFFFFFF if is_number else crc32(repr(name).encode())  # type: ignore[call-overload]


def plain(client: ClientId) -> ClientId:
    """A name as the journal gives it back: numpy's scalars as Python's, which are equal but look different."""
    if isinstance(client, tuple):
        return tuple(map(plain, client))
    return client.item() if isinstance(client, np.generic) else client
