"""The way down: a model in versions, and for each client what brings it to the newest one."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import numpy as np

from perbit.channels.store import Changes
from perbit.errors import EncodeError
from perbit.frame import wire
from perbit.kernels.api import F32
from perbit.plan import dumps
from perbit.printing import logger
from perbit.protocols.downlinks import Delivery, Versions
from perbit.protocols.protocol import Average, Protocol, Server, down_seed
from perbit.randomness import fold
from perbit.session.envelope import DIGEST_BYTES, Kind, WayDown, enclose
from perbit.session.model import Model, Tensors, frozen, pack_exact, same
from perbit.session.parts import Parts
from perbit.session.serverstate import ClientId, Known, Pending, number_of
from perbit.session.terms import Terms

LOG = logger("perbit.session")
_RECENT = 2  # models whose answers are still taken
_REMEMBERED = 64  # versions whose exact tensors are known; clients of older ones are sent all of them


class Sending:
    """What a server holds, and the frames it makes of that. Every message waits for its answer; until then nothing has happened."""

    protocol: Protocol
    population: int | None
    seed: int
    _is_durable: bool
    _first: bytes  # the frame of the newest model, until there is a second one
    _terms: Terms
    _average: Average  # of what came since
    _places: Changes  # where clients are

    def __init__(self) -> None:
        self._sequence = 0  # over all clients, so that the numbers of one client never repeat
        self._model: Model | None = None  # the newest one, as it was given
        self._clients: dict[ClientId, Known] = {}
        self._pending: dict[ClientId, Pending] = {}
        self._bases: dict[int, F32] = {}  # the latest models, by version
        self._exact: dict[int, Tensors] = {}  # the exact tensors of more of them
        self._parts = Parts()  # which of the tensors some clients answer with

    # --- the model ----------------------------------------------------------------------------------------------------

    @property
    def _server(self) -> Server:
        return self._average.server

    def _present_model(self) -> Model:
        if self._model is None:
            raise EncodeError("the session has no model yet; send one first")
        return self._model

    def _start(self, model: Model) -> None:
        """Everything anew."""
        if self._model is not None:
            LOG.warning("the model has other tensors than before: every client will be sent all of it")
        downlink, layout = self.protocol.downlink, model.layout
        plan = downlink.first if isinstance(downlink, Versions) else "raw"
        self._first = dumps(layout.split(model.flat), plan, seed=0)
        known = frozen(layout.flatten(wire.loads(self._first)))
        session, incarnation = secrets.token_bytes(DIGEST_BYTES), secrets.token_bytes(DIGEST_BYTES)
        self._clients, self._pending, self._bases, self._exact = {}, {}, {}, {}
        exact_model = model.flat.astype(np.float64)
        server = self.protocol.server(layout, exact_model, known, self.population, self._is_durable)
        ends = self.protocol.uplink, downlink
        self._terms = Terms(session, incarnation, self.seed, 0, *ends, model.schema, tuple(model.exact))
        self._publish(server, model)

    def _take(self, model: Model) -> None:
        """A new model becomes a new version."""
        flat, server = model.flat.astype(np.float64), self._average.settled()
        server = self.protocol.publish(server, flat, flat - server.model, fold(self.seed, server.round))
        self._publish(server, model)

    def _publish(self, server: Server, model: Model) -> None:
        if server.round:
            server, self._first = replace(server, places=self._places.settled()), b""
        self._model, self._average, self._places = model, Average(self.protocol, server), Changes(server.places)
        self._bases[server.round] = model.flat if self._preserves else frozen(server.model.astype(np.float32))
        self._bases = {version: base for version, base in self._bases.items() if version > server.round - _RECENT}
        self._exact = {version: held for version, held in self._exact.items() if version > server.round - _REMEMBERED}
        self._exact[server.round] = _shared(model.exact, self._exact.get(server.round - 1, {}))
        for client in [client for client, sent in self._pending.items() if sent.version not in self._bases]:
            self._abandon(client)

    @property
    def _preserves(self) -> bool:
        """Whether the server's own model is the one it was given, and not what the clients hold of it."""
        return self.protocol.carries == "model" or self.protocol.exact

    # --- frames -------------------------------------------------------------------------------------------------------

    def _send(self, client: ClientId) -> bytes:
        self._sequence += 1
        known = self._clients.get(client)
        if known is None:
            return self._send_full(client)
        return self._send_unchanged(client) if known.version == self._server.round else self._send_delta(client)

    def _send_full(self, client: ClientId) -> bytes:
        server, model = self._server, self._present_model()
        sent = self._deliver(None, client) if server.round else self._stay(server.places.first)
        self._wait(client, sent, self._digest_up(client))
        terms = replace(self._terms, number=number_of(client)).to_bytes()
        way = WayDown(server.round, sent.start, list(sent.frames), pack_exact(model.exact))
        return enclose(Kind.FULL, self._sequence, bytes(DIGEST_BYTES), terms, *way.parts(), self._first)

    def _send_unchanged(self, client: ClientId) -> bytes:
        place, up = self._places.get(client), self._digest_up(client)
        held = self._wait(client, self._stay(place), up)
        return enclose(Kind.UNCHANGED, self._sequence, held)

    def _send_delta(self, client: ClientId) -> bytes:
        place, up, model = self._places.get(client), self._digest_up(client), self._present_model()
        base, sent = self._digest(up, place), self._deliver(place, client)
        self._wait(client, sent, up)
        held = self._exact.get(self._clients[client].version, {})
        changed = {name: x for name, x in model.exact.items() if name not in held or not same(x, held[name])}
        way = WayDown(self._server.round, sent.start, list(sent.frames), pack_exact(changed))
        return enclose(Kind.DELTA, self._sequence, base, *way.parts())

    def _deliver(self, place: Any, client: ClientId) -> Delivery:
        seed = down_seed(fold(self.seed, self._server.round))
        sent = self.protocol.downlink.deliver(self._server.downlink, place, number_of(client), seed)
        self._average.server = replace(self._server, downlink=sent.side)
        return sent

    def _stay(self, place: Any) -> Delivery:
        """Nothing is sent, but until the answer comes one more is at this place."""
        self.protocol.downlink.enter(self._server.downlink, place)
        return Delivery([], self._server.downlink, place)

    def _wait(self, client: ClientId, sent: Delivery, up: bytes) -> bytes:
        """For an answer with this digest."""
        self._abandon(client)
        known, expected = self._clients.get(client), self._digest(up, sent.place)
        names = None if known is None else known.names
        self._pending[client] = Pending(self._sequence, self._server.round, sent.place, expected, names)
        return expected

    def _abandon(self, client: ClientId) -> None:
        """No answer is waited for any more: the client stays where it was."""
        pending = self._pending.pop(client, None)
        if pending is not None:
            self.protocol.downlink.release(self._server.downlink, pending.place)

    def _forget(self, client: ClientId) -> None:
        """The client is a stranger."""
        self._abandon(client)
        if self._clients.pop(client, None) is not None:
            self.protocol.downlink.release(self._server.downlink, self._places.get(client))
        self._places.remove(client)
        self._average.forget(client)

    def _digest_up(self, client: ClientId) -> bytes:
        return self.protocol.uplink.digest(self._average.uplinks.get(client))

    def _digest(self, up: bytes, place: Any) -> bytes:
        return self._terms.digest(up, self.protocol.downlink.digest_at(place))


def _shared(exact: Tensors, before: Tensors) -> Tensors:
    """The same arrays, but those that did not change are kept once."""
    return {name: before[name] if name in before and same(x, before[name]) else x for name, x in exact.items()}
