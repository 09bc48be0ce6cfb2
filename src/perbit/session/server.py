"""The server's side, as an engine calls it: limits, a key, a folder from which a killed server goes on."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from perbit.channels.packing import to_text
from perbit.channels.store import Changes, OnDisk
from perbit.coding.bits import Piece
from perbit.errors import DecodeError, EncodeError, PerbitError, SpecError
from perbit.files import FileError
from perbit.frame import wire
from perbit.printing import logger
from perbit.protocols.protocol import Average, Protocol, Step
from perbit.randomness import fold
from perbit.session.bounds import NormBound, ResyncBound, TooLarge, TooManyResyncs
from perbit.session.envelope import DIGEST_BYTES, Kind, kind_of
from perbit.session.journal import Call, Journal
from perbit.session.memory import ASKED, FOR_QUESTIONS, n_bytes_of
from perbit.session.model import Model, Tensors, frozen
from perbit.session.receiving import Absent
from perbit.session.room import Room
from perbit.session.seal import ANYBODY, Seal, Way
from perbit.session.serverstate import STATE_TYPES, ClientId, ServerState, number_of
from perbit.session.terms import check_sendable

LOG = logger("perbit.session")
_MOST_LOST = 1000  # messages since the journal was safe on disk, as a power cut may take them
_FLAT, _EXACT = "flat", "exact "  # the parts of a model in the journal


class ServerSession(Room):
    """Sends a model to clients and receives their answers. Whatever is not answered changes nothing.

    Clients that hold the same share one coded frame, and the server's memory does not grow with their number, except by what a
    protocol keeps of each client (DIANA's and MCM's memories), which `folder` puts on disk.

    Args:
        protocol: how to talk (`perbit.presets`).
        seed: fixes every random choice, the clients' too; None draws one.
        population: how many clients there are, absent ones included; None: those that were heard of.
        max_clients: of more, those unheard of for longest are forgotten, and get a full model should they come back. By default
            10 000 where a memory of each is kept in the server's own memory, otherwise any number.
        absent: "predicted": what `receive` gives is shifted so that a plain mean over those present counts absent clients as their
            memories predict, as DIANA and its heirs want it; "ignored": every client's own model.
        folder: the session's own, for what it must not lose: a server that was killed goes on from there as if nothing had happened.
            Memories of each client and anchors of absent ones are kept there instead of in memory.
        memory: how much may be held between two calls ("2 GB", or a number of bytes; see `memory_used`). Where it is not enough,
            clients unheard of for longest are forgotten; None: no limit.
        max_norm: leave out updates whose norm is more than so many times the median of the latest ones; None: take them all.
        max_resyncs: how many full frames a client may bring about of one version of the model.
        key: 16 to 64 secret bytes that the clients have too: frames without a good seal are refused, for transports without TLS.
    """

    def __init__(
        self,
        protocol: Protocol,
        seed: int | None = None,
        *,
        population: int | None = None,
        max_clients: int | None = None,
        absent: Absent = "predicted",
        folder: str | Path | None = None,
        memory: str | int | None = None,
        max_norm: float | None = None,
        max_resyncs: int = 3,
        key: bytes | None = None,
    ) -> None:
        super().__init__()
        if max_clients is not None and max_clients < 1:
            raise SpecError(f"a session needs at least one client, got max_clients={max_clients}")
        if absent not in get_args(Absent):
            raise SpecError(f"absent clients are {' or '.join(get_args(Absent))}, got {absent!r}")
        if not isinstance(protocol, Protocol):
            raise SpecError(
                f"a session takes a Protocol, e.g. perbit.presets.mcm() or protocol_of('mcm'), got {protocol!r}"
            )
        check_sendable(protocol)
        self.protocol = protocol if folder is None else replace(protocol, folder=str(folder))
        self.population, self.absent, self.max_clients, self.memory = (
            population,
            absent,
            max_clients,
            n_bytes_of(memory),
        )
        self.n_resyncs = self.n_too_large = 0
        self.seed = secrets.randbits(63) if seed is None else seed
        most_asking = math.inf if self.memory is None else self.memory // (FOR_QUESTIONS * ASKED)
        self._resyncs = ResyncBound(max_resyncs, most_asking)
        self._norms, self._seal = NormBound(max_norm), Seal(key)
        self._is_durable, self._journal = folder is not None, None if folder is None else self._open(Path(folder))

    # --- what an engine calls -----------------------------------------------------------------------------------------

    def send(self, client: ClientId, tensors: Mapping[str, Any] | Model | None = None) -> bytes:
        """A frame that brings a client to this model, or to the present one. A `Model` spares a copy when many get the same."""
        if tensors is not None:
            self.publish(tensors)
        if self._model is None:
            raise EncodeError("there is no model to send yet")
        self._note("send", client)
        frame = self._send(client)
        self._make_room()
        is_full = kind_of(frame) == Kind.FULL
        return self._seal.close(frame, Way.DOWN, ANYBODY if is_full else number_of(client))

    def model(self, tensors: Mapping[str, Any] | Model) -> Model:
        """Tensors as they go to clients: in the order and with the dtypes of the first model."""
        model = Model.of(tensors, self._model)
        return self._model if self._model is not None and self._model.same_as(model) else model

    def is_present(self, model: Model) -> bool:
        """Whether this is the model that `send` sends now."""
        return self._model is not None and self._model.same_as(model)

    def resync(self, client: ClientId, tensors: Mapping[str, Any] | Model | None = None) -> bytes:
        """A full frame with this model, or with the present one. TooManyResyncs if this client had enough of them."""
        if self._model is None:
            raise EncodeError(f"nothing was sent to client {client} yet, so there is nothing to send again")
        self._note("resync", client)
        if not self._may_have_all(client):
            raise TooManyResyncs(f"client {client} asked for the whole model too often")
        self.n_resyncs += 1
        LOG.warning("resync of client %s: sending the whole model", client)
        return self.send(client, tensors)

    def receive(self, client: ClientId, answer: Piece) -> Tensors | None:
        """The client's model, or None if it only acknowledged.

        ResyncNeeded: the client asks for a full frame (see `resync`). Any other StateMismatch but these: the client holds something else, and
        gets a full frame next time. StaleAnswer: it comes too late or twice. TooManyResyncs: the client had enough full frames.
        Any other DecodeError: the answer is of no use (TooLarge: far from the others). In these cases it is left out, and the client
        stays where it was.
        """
        frame = self._seal.open(answer, Way.UP, number_of(client), ANYBODY)
        self._refuse_stale(client, self._opened(frame))
        self._note("receive", client, frame)
        return self._received(client, frame)

    def check_question(self, client: ClientId, question: Piece) -> None:
        """Refuse what is no client's question for everything, where a transport brings it beside the answers."""
        if self._opened(self._seal.open(question, Way.UP, number_of(client), ANYBODY)).kind != Kind.RESYNC:
            raise DecodeError(f"client {client} asks for no resync")

    def is_full(self, frame: bytes) -> bool:
        """Whether a frame that `send` gave brings the whole model."""
        return kind_of(self._seal.inside(frame)) == Kind.FULL

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
        model, mean = self._present_model().with_exact(exact or {}), self._average.mean
        change = step(mean) if callable(step) else -step * mean
        noted = self._note_model("step", change, model)
        self._move(change, model)
        self._published(noted)

    def publish(self, tensors: Mapping[str, Any] | Model) -> None:
        """Make this the present model, which `send` sends. One with other tensors starts everything anew."""
        model = self.model(tensors)
        if self._model is None or self._model.schema != model.schema:
            self._start(model)
            self._check_room()
            self._save()
        elif not self._model.same_as(model):
            noted = self._note_model("publish", model.flat, model)
            self._take(model)
            self._published(noted)

    def forget(self, client: ClientId) -> None:
        """Send this client a full frame next time."""
        if self._model is not None:
            self._note("forget", client)
            self._forget(client)

    def forget_pending(self, client: ClientId) -> None:
        """No answer will come to the last message: the client stays where it was."""
        if client in self._pending:
            self._note("abandon", client)
            self._abandon(client)

    def close(self, is_over: bool = False) -> None:
        """Let another process have the folder; if the session is over, without anything of it in there."""
        if self._journal is not None:
            self._journal.close(remove=is_over)
            self._journal = None

    # --- what it holds ------------------------------------------------------------------------------------------------

    @property
    def tensors(self) -> Tensors:
        """The present model."""
        return self._present_model().tensors()

    @property
    def present(self) -> Model:
        """The present model as `send` takes it."""
        return self._present_model()

    @property
    def has_model(self) -> bool:
        """Whether there is a present model: at once, if the folder holds what an earlier process left."""
        return self._model is not None

    @property
    def flat(self) -> Any:
        """The server's own model as one vector of float64: exact where the protocol preserves it."""
        self._present_model()
        return self._server.model

    def digest(self, client: ClientId) -> bytes | None:
        """The digest of what a client holds; the client's own is the same."""
        if self._model is None or client not in self._clients:
            return None
        return self._digest(self._digest_up(client), self._places.get(client))

    @property
    def state(self) -> ServerState:
        """The session as a value; what was sent and is not answered yet is left out, as if it had been lost."""
        self._present_model()
        downlink = self.protocol.downlink
        if self._server.uplinks.is_final or self._server.places.is_final:
            raise FileError("what keeps its clients' memories in a folder has no state to give: it is in there")
        side = downlink.copied(self._server.downlink)
        for pending in self._pending.values():
            downlink.release(side, pending.place)
        state = self._whole_state()
        return replace(state, server=replace(state.server, downlink=side), pending={})

    @state.setter
    def state(self, state: ServerState) -> None:
        copied = replace(state.server, downlink=self.protocol.downlink.copied(state.server.downlink))
        self._go_on_from(replace(state, server=copied, pending={}))
        self._terms = replace(state.terms, incarnation=secrets.token_bytes(DIGEST_BYTES))
        self._save()

    def _whole_state(self) -> ServerState:
        server = replace(self._average.settled(), places=self._places.settled())
        return ServerState(
            *(server, self._present_model(), self._first, self._terms, self._sequence, self.n_resyncs),
            *(
                dict(self._clients),
                dict(self._bases),
                dict(self._exact),
                tuple(self._norms.latest),
                dict(self._pending),
            ),
        )

    def _go_on_from(self, state: ServerState) -> None:
        self._model, self._first, self.seed = state.model, state.first, state.terms.seed
        self._terms, self._sequence, self.n_resyncs = state.terms, state.sequence, state.n_resyncs
        self._clients, self._pending = dict(state.clients), dict(state.pending)
        self._bases, self._exact = dict(state.bases), dict(state.exact)
        self._average, self._places = Average(self.protocol, state.server), Changes(state.server.places)
        self._norms.restore(state.norms)
        self._resyncs.start_anew()

    # --- what calls do, now or when they are made again -------------------------------------------------------------------

    def _received(self, client: ClientId, frame: Piece) -> Tensors | None:
        try:
            tensors = self._receive(client, frame)
        except TooLarge:
            self.n_too_large += 1
            raise
        self._make_room()
        return tensors

    def _move(self, change: Any, model: Model) -> None:
        server = self._average.stepped(change, fold(self.seed, self._server.round))
        with np.errstate(over="ignore"):
            flat = server.model.astype(np.float32)
        self._publish(server, model.changed(flat, {}))

    def _published(self, noted: bool) -> None:
        self._resyncs.start_anew()
        self._make_room()
        if self._journal is not None:
            self._journal.sync()
            if self._journal.is_long or not noted:
                self._save()

    def _again(self, call: Call) -> None:
        """What a call did that was noted; what it refused then, it refuses now."""
        name, client, data = call
        try:
            if name == "send":
                self._send(client)
                self._make_room()
            elif name == "receive":
                self._received(client, data)
            elif name == "restart":  # if a power cut took calls from the journal, no number is used twice
                self._sequence += _MOST_LOST
            elif name == "resync":
                self._may_have_all(client)
            elif name in ("publish", "step"):
                parts = wire.loads(data)
                flat, exact = parts.pop(_FLAT), {key.removeprefix(_EXACT): x for key, x in parts.items()}
                model = self._present_model()
                if name == "publish":
                    self._take(model.changed(frozen(flat), exact))
                else:
                    self._move(flat, model.with_exact(exact))
                self._resyncs.start_anew()
                self._make_room()
            else:
                {"forget": self._forget, "abandon": self._abandon}[name](client)
        except PerbitError as error:
            LOG.info("as before, client %s: %s", client, error)

    # --- the folder -----------------------------------------------------------------------------------------------------

    def _open(self, folder: Path) -> Journal:
        """The folder's journal, and what an earlier process left in it."""
        protocol = replace(self.protocol, folder=None)
        journal = Journal(
            folder, to_text((protocol.name, protocol.uplink, protocol.downlink, protocol.carries, protocol.exact))
        )
        found = journal.load()
        if found is not None and self._is_made_again(*found):
            calls = found[1]
            self._terms = replace(self._terms, incarnation=secrets.token_bytes(DIGEST_BYTES))
            restart = Call("restart", None, b"")
            journal.write(restart)
            self._again(restart)
            LOG.info("the session in %s goes on, after %d calls that were made again", folder, len(calls))
        return journal

    def _is_made_again(self, state: ServerState, calls: list[Call]) -> bool:
        """Whether all that was noted could be done again. If not, the session starts anew: a server must not fail at every start."""
        try:
            self._go_on_from(state)
            for call in calls:
                self._again(call)
        except Exception:
            LOG.exception("the session in %s starts anew, every client is sent everything", self.protocol.folder)
            super().__init__()
            return False
        return True

    def _note(self, name: str, client: ClientId, data: bytes = b"") -> None:
        if self._journal is not None:
            self._journal.write(Call(name, client, data))
        elif self._is_durable:
            raise FileError("the session was closed, and another process may hold its folder")

    def _note_model(self, name: str, flat: Any, model: Model) -> bool:
        """Whether it was noted: a very large model is a snapshot as soon as it is there, before any frame of it leaves."""
        if self._journal is not None and not self._journal.takes(flat.nbytes + model.n_bytes):
            return False
        self._note(name, None, wire.write_raw({_FLAT: flat, **_named(model)}) if self._journal else b"")
        return True

    def _save(self) -> None:
        """A snapshot, which is sound only while no answer to the present model was taken: a mean is not part of it."""
        if self._journal is None or self._model is None:
            return
        state = self._whole_state()
        files = [store for store in self._stores(state) if isinstance(store, OnDisk)]
        self._journal.begin(state, {store.name for store in files})
        for store in files:
            store.settle()

    def _stores(self, state: ServerState) -> tuple[Any, ...]:
        shelf = self.protocol.downlink.shelf_of(state.server.downlink)
        return state.server.uplinks, state.server.places, shelf


def _named(model: Model) -> Tensors:
    return {_EXACT + name: x for name, x in model.exact.items()}


__all__ = ["STATE_TYPES", "Absent", "ClientId", "ServerSession", "ServerState", "number_of"]
