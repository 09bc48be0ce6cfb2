"""The server's side: a model that goes down in versions, what is known of each client, and what was sent and not yet answered."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args
from zlib import crc32

import numpy as np

from perbit.channels.store import Changes
from perbit.coding.bits import Piece
from perbit.errors import DecodeError, EncodeError, SpecError, StateMismatch
from perbit.files import FileError
from perbit.frame import wire
from perbit.kernels.api import F32
from perbit.plan import dumps
from perbit.protocols import protocol as protocol_module
from perbit.protocols.downlinks import Delivery, PerClient, Versions
from perbit.protocols.protocol import Average, Protocol, Server, Step, down_seed
from perbit.randomness import fold
from perbit.session.envelope import (
    DIGEST_BYTES,
    MAX_REASON,
    Envelope,
    Kind,
    ResyncNeeded,
    StaleAnswer,
    WayDown,
    enclose,
    opened,
)
from perbit.session.model import Model, Tensors, answered, check_numbers, frozen, pack_exact, same, unpack_exact
from perbit.session.terms import TYPES, Terms, check_sendable

LOG = logging.getLogger("perbit.session")
ClientId = Hashable
Absent = Literal["predicted", "ignored"]
_RECENT = 2  # models whose answers are still taken
_REMEMBERED = 64  # versions whose exact tensors are known; clients of older ones are sent all of them


@dataclass(frozen=True, slots=True)
class _Known:
    """A client that has answered: to which message, the version of the model it holds, and the tensors it answers with (None: all)."""

    sequence: int
    version: int
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
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
    clients: dict[Any, _Known]
    bases: dict[int, F32]
    exact: dict[int, Tensors]


STATE_TYPES = (ServerState, _Known, Model, Terms, *TYPES, *protocol_module.STATE_TYPES)


class ServerSession:
    """Sends a model to clients and receives their answers. Whatever is not answered changes nothing.

    Clients that hold the same share one coded frame, and the server's memory does not grow with their number, except by what a
    protocol keeps of each client (DIANA's and MCM's memories), which `protocol.folder` puts on disk.

    Args:
        protocol: how to talk (`perbit.presets`).
        seed: fixes every random choice, the clients' too; None draws one.
        population: how many clients there are, absent ones included; None: those that were heard of.
        max_clients: of more, those unheard of for longest are forgotten, and get a full model should they come back. By default
            10 000 where a memory of each is kept in the server's own memory, otherwise any number.
        absent: "predicted": what `receive` gives is shifted so that a plain mean over those present counts absent clients as their
            memories predict, as DIANA and its heirs want it; "ignored": every client's own model.
    """

    def __init__(
        self,
        protocol: Protocol,
        seed: int | None = None,
        *,
        population: int | None = None,
        max_clients: int | None = None,
        absent: Absent = "predicted",
    ) -> None:
        if max_clients is not None and max_clients < 1:
            raise SpecError(f"a session needs at least one client, got max_clients={max_clients}")
        if absent not in get_args(Absent):
            raise SpecError(f"absent clients are {' or '.join(get_args(Absent))}, got {absent!r}")
        check_sendable(protocol)
        self.protocol, self.population, self.absent = protocol, population, absent
        self.max_clients = max_clients
        self.n_resyncs = 0
        self.seed = secrets.randbits(63) if seed is None else seed
        self._sequence = 0  # over all clients, so that the numbers of one client never repeat
        self._model: Model | None = None  # the newest one, as it was given
        self._first: bytes  # its frame, until there is a second one
        self._terms: Terms
        self._average: Average  # of what came since
        self._places: Changes  # where clients are
        self._clients: dict[ClientId, _Known] = {}
        self._pending: dict[ClientId, _Pending] = {}
        self._bases: dict[int, F32] = {}  # the latest models, by version
        self._exact: dict[int, Tensors] = {}  # the exact tensors of more of them

    # --- what an engine calls -----------------------------------------------------------------------------------------

    def send(self, client: ClientId, tensors: Mapping[str, Any] | Model | None = None) -> bytes:
        """A frame that brings a client to this model, or to the present one. A `Model` spares a copy when many get the same."""
        if tensors is not None:
            self.publish(tensors)
        if self._model is None:
            raise EncodeError("there is no model to send yet")
        self._sequence += 1
        known = self._clients.get(client)
        if known is None:
            return self._send_full(client)
        return self._send_unchanged(client) if known.version == self._server.round else self._send_delta(client)

    def model(self, tensors: Mapping[str, Any] | Model) -> Model:
        """Tensors as they go to clients: in the order and with the dtypes of the first model."""
        model = Model.of(tensors, self._model)
        return self._model if self._model is not None and self._model.same_as(model) else model

    def is_present(self, model: Model) -> bool:
        """Whether this is the model that `send` sends now."""
        return self._model is not None and self._model.same_as(model)

    def resync(self, client: ClientId, tensors: Mapping[str, Any] | Model | None = None) -> bytes:
        """A full frame with this model, or with the present one."""
        if self._model is None:
            raise EncodeError(f"nothing was sent to client {client} yet, so there is nothing to send again")
        self.n_resyncs += 1
        LOG.warning("resync of client %s: sending the whole model", client)
        self.forget(client)
        return self.send(client, tensors)

    def receive(self, client: ClientId, answer: Piece) -> Tensors | None:
        """The client's model, or None if it only acknowledged.

        ResyncNeeded: the client asks for a full frame (see `resync`). StaleAnswer: it comes too late or twice, and is left out.
        Any other DecodeError: the answer is of no use; the client is forgotten, so that it gets a full frame next time.
        """
        try:
            return self._receive(client, opened(answer))
        except StaleAnswer:
            raise
        except DecodeError:
            self.forget(client)
            raise

    def mean(self) -> Tensors:
        """What the protocol says is to be subtracted from the model: the mean of what came since the model was sent, absent
        clients counted as their memories predict. For a server with an optimiser of its own."""
        model = self._present_model()
        return model.layout.split(self._average.mean.astype(np.float32))

    def step(self, step: Step, exact: Mapping[str, Any] | None = None) -> None:
        """Move the model by -step times that mean, or as an optimiser says; the next `send` sends it.

        Args:
            step: a number, or a function from the mean (flat, float64) to the change of the model.
            exact: new values of the tensors that are not floats.
        """
        model = self._present_model().with_exact(exact or {})
        server = self._average.advance(step, fold(self.seed, self._server.round))
        with np.errstate(over="ignore"):
            flat = server.model.astype(np.float32)
        self._publish(server, model.changed(flat, {}))

    def publish(self, tensors: Mapping[str, Any] | Model) -> None:
        """Make this the present model, which `send` sends."""
        self._take(self.model(tensors))

    @property
    def state(self) -> ServerState:
        """The session as a value; what was sent and is not answered yet is left out, as if it had been lost."""
        model, downlink = self._present_model(), self.protocol.downlink
        if self._server.uplinks.is_final or self._server.places.is_final:
            raise FileError("what keeps its clients' memories in a folder has no state to give: they change in there")
        side = downlink.copied(self._server.downlink)
        for pending in self._pending.values():
            downlink.release(side, pending.place)
        server = replace(self._average.settled(), places=self._places.settled(), downlink=side)
        return ServerState(
            *(server, model, self._first, self._terms, self._sequence, self.n_resyncs),
            *(dict(self._clients), dict(self._bases), dict(self._exact)),
        )

    @state.setter
    def state(self, state: ServerState) -> None:
        server = replace(state.server, downlink=self.protocol.downlink.copied(state.server.downlink))
        self._model, self._first, self.seed = state.model, state.first, state.terms.seed
        self._terms = replace(state.terms, incarnation=secrets.token_bytes(DIGEST_BYTES))
        self._sequence, self.n_resyncs = state.sequence, state.n_resyncs
        self._clients, self._pending = dict(state.clients), {}
        self._bases, self._exact = dict(state.bases), dict(state.exact)
        self._average, self._places = Average(self.protocol, server), Changes(server.places)

    @property
    def tensors(self) -> Tensors:
        """The present model."""
        return self._present_model().tensors()

    @property
    def flat(self) -> Any:
        """The server's own model as one vector of float64: exact where the protocol preserves it."""
        self._present_model()
        return self._server.model

    def forget(self, client: ClientId) -> None:
        """Send this client a full frame next time."""
        if self._model is None:
            return
        self._abandon(client)
        if self._clients.pop(client, None) is not None:
            self.protocol.downlink.release(self._server.downlink, self._places.get(client))
        self._places.remove(client)
        self._average.forget(client)

    def forget_pending(self, client: ClientId) -> None:
        """No answer will come to the last message: the client stays where it was."""
        if self._model is not None:
            self._abandon(client)

    def digest(self, client: ClientId) -> bytes | None:
        """The digest of what a client holds; the client's own is the same."""
        if self._model is None or client not in self._clients:
            return None
        return self._digest(self._digest_up(client), self._places.get(client))

    # --- the model ----------------------------------------------------------------------------------------------------

    @property
    def _server(self) -> Server:
        return self._average.server

    def _present_model(self) -> Model:
        if self._model is None:
            raise EncodeError("the session has no model yet; send one first")
        return self._model

    def _take(self, model: Model) -> None:
        """A new model becomes a new version; one with other tensors starts everything anew."""
        if self._model is None or self._model.schema != model.schema:
            self._start(model)
        elif not self._model.same_as(model):
            flat, server = model.flat.astype(np.float64), self._average.settled()
            server = self.protocol.publish(server, flat, flat - server.model, fold(self.seed, server.round))
            self._publish(server, model)

    def _start(self, model: Model) -> None:
        if self._model is not None:
            LOG.warning("the model has other tensors than before: every client will be sent all of it")
        downlink, layout = self.protocol.downlink, model.layout
        plan = downlink.first if isinstance(downlink, Versions) else "raw"
        self._first = dumps(layout.split(model.flat), plan, seed=0)
        known = frozen(layout.flatten(wire.loads(self._first)))
        session, incarnation = secrets.token_bytes(DIGEST_BYTES), secrets.token_bytes(DIGEST_BYTES)
        self._clients, self._pending, self._bases, self._exact = {}, {}, {}, {}
        server = self.protocol.server(layout, model.flat.astype(np.float64), known, self.population)
        ends = self.protocol.uplink, downlink
        self._terms = Terms(session, incarnation, self.seed, 0, *ends, model.schema, tuple(model.exact))
        self._publish(server, model)

    def _publish(self, server: Server, model: Model) -> None:
        if server.round:
            server, self._first = replace(server, places=self._places.settled()), b""
        self._model, self._average, self._places = model, Average(self.protocol, server), Changes(server.places)
        self._bases[server.round] = model.flat if self._preserves else frozen(server.model.astype(np.float32))
        self._bases = {version: base for version, base in self._bases.items() if version > server.round - _RECENT}
        self._exact = {version: held for version, held in self._exact.items() if version > server.round - _REMEMBERED}
        self._exact[server.round] = self._shared(model.exact, self._exact.get(server.round - 1, {}))
        for client in [client for client, sent in self._pending.items() if sent.version not in self._bases]:
            self._abandon(client)

    @staticmethod
    def _shared(exact: Tensors, before: Tensors) -> Tensors:
        """The same arrays, but those that did not change are kept once."""
        return {name: before[name] if name in before and same(x, before[name]) else x for name, x in exact.items()}

    @property
    def _preserves(self) -> bool:
        """Whether the server's own model is the one it was given, and not what the clients hold of it."""
        return self.protocol.carries == "model" or self.protocol.exact

    # --- down ---------------------------------------------------------------------------------------------------------

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
        self._pending[client] = _Pending(self._sequence, self._server.round, sent.place, expected, names)
        return expected

    def _abandon(self, client: ClientId) -> None:
        pending = self._pending.pop(client, None)
        if pending is not None:
            self.protocol.downlink.release(self._server.downlink, pending.place)

    def _digest_up(self, client: ClientId) -> bytes:
        return self.protocol.uplink.digest(self._average.uplinks.get(client))

    def _digest(self, up: bytes, place: Any) -> bytes:
        return self._terms.digest(up, self.protocol.downlink.digest_at(place))

    # --- up -----------------------------------------------------------------------------------------------------------

    def _receive(self, client: ClientId, answer: Envelope) -> Tensors | None:
        if answer.kind not in (Kind.ACK, Kind.UPDATE, Kind.RESYNC):
            raise DecodeError(f"a client sends no frame of kind {answer.kind.name}")
        pending = self._pending.get(client)
        if self._is_stale(client, answer):
            waited = "nothing" if pending is None else f"an answer to {pending.sequence}"
            raise StaleAnswer(f"client {client} answers frame {answer.sequence}, but {waited} was waited for")
        if answer.kind == Kind.RESYNC:
            reason = repr(bytes(answer.body.section("reason")[:MAX_REASON]).decode(errors="replace"))
            raise ResyncNeeded(f"client {client} asks for a resync: {reason}")
        if pending is None or answer.sequence != pending.sequence or answer.digest != pending.digest:
            number, expected = (0, b"") if pending is None else (pending.sequence, pending.digest)
            raise StateMismatch(
                f"client {client} answers frame {answer.sequence} with memory {answer.digest.hex()}, expected frame "
                f"{number} and {expected.hex()}; it needs a resync",
                *(answer.sequence, number),
            )
        if answer.kind == Kind.ACK:
            answer.body.end()
            if client not in self._clients:  # it counts as one more
                self._average.uplinks.put(client, self._average.uplinks.get(client))
            self._confirm(client, pending, pending.names)
            return None
        return self._receive_update(client, pending, answer)

    def _is_stale(self, client: ClientId, answer: Envelope) -> bool:
        """Whether an answer comes too late or twice. A client that could not even read a frame's number says 0."""
        pending, known = self._pending.get(client), self._clients.get(client)
        if answer.kind != Kind.RESYNC:
            return pending is None or answer.sequence < pending.sequence
        settled = pending.sequence - 1 if pending is not None else known.sequence if known is not None else 0
        return 0 < answer.sequence <= settled

    def _receive_update(self, client: ClientId, pending: _Pending, answer: Envelope) -> Tensors:
        model, names = self._present_model(), pending.names
        frame, rest, told = (answer.body.section(name) for name in ("update", "exact", "names"))
        answer.body.end()
        exact = unpack_exact(rest, model)
        check_numbers(exact)
        if len(told):
            names = self._names(told)
            self._average.restart(client, self.protocol.uplink.init(answered(model.layout, names))[1])
        shift = self._average.shift(client) if self.absent == "predicted" else None
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused, not warned of
            value = self._average.add(client, frame)
        self._confirm(client, pending, names)
        flat = self._bases[pending.version] - (value if shift is None else value + shift)
        return model.changed(flat, exact).tensors(names)

    def _names(self, told: Piece) -> tuple[str, ...] | None:
        known = [name for name, _, _ in self._present_model().schema]
        try:
            listed = json.loads(bytes(told))
            names = set(listed) if isinstance(listed, list) else set()
        except (ValueError, TypeError, RecursionError) as error:
            raise DecodeError(f"cannot read the names of the tensors: {error}") from error
        if not (names and names <= set(known)):
            raise DecodeError("the answer is about tensors that the model does not have")
        return None if len(names) == len(known) else tuple(name for name in known if name in names)

    def _confirm(self, client: ClientId, pending: _Pending, names: tuple[str, ...] | None) -> None:
        """The client is where the message led it; the one heard of last is last."""
        if self._clients.pop(client, None) is not None:
            self.protocol.downlink.release(self._server.downlink, self._places.get(client))
        self._clients[client] = _Known(pending.sequence, pending.version, names)
        self._places.put(client, pending.place)
        del self._pending[client]
        while len(self._clients) > self._most_clients:
            self.forget(next(iter(self._clients)))

    @property
    def _most_clients(self) -> float:
        if self.max_clients is not None:
            return self.max_clients
        keeps_memories = self._server.predicted is not None or isinstance(self.protocol.downlink, PerClient)
        return 10_000 if keeps_memories and self.protocol.folder is None else float("inf")


def number_of(client: ClientId) -> int:
    """The number under which a client draws: its own if it is one, otherwise a hash of its name."""
    is_number = isinstance(client, int) and not isinstance(client, bool)
    return int(client) & 0xFFFFFFFF if is_number else crc32(repr(client).encode())  # type: ignore[call-overload]
