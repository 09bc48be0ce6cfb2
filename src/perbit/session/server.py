"""The server's side: one confirmed end for each client, and what was sent and not yet answered."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from perbit import wire
from perbit.bits import Piece
from perbit.channels import State
from perbit.errors import DecodeError, EncodeError, SpecError, StateMismatch
from perbit.kernels.api import F32
from perbit.protocol import Protocol
from perbit.randomness import fold
from perbit.session.end import End, first_ends, pack_exact, pack_names, unpack_exact
from perbit.session.envelope import DIGEST_BYTES, MAX_REASON, Kind, Opened, ResyncNeeded, open_frame, seal
from perbit.session.model import Model, Tensors
from perbit.session.wiring import Wiring

LOG = logging.getLogger("perbit.session")
ClientId = Hashable


@dataclass(frozen=True, eq=False)
class Known:
    """A client's end, and the server's model that it stands for."""

    end: End
    model: Model


class ServerSession:
    """Sends a model to clients and receives their answers. Whatever is not answered has not happened.

    Clients in the same state share their memories and their frame: the frame is coded once, and a thousand clients in step
    cost the server what one costs. One out of step costs about three models of memory; of more than `max_clients` those unheard
    of for longest are forgotten, and get a full frame should they come back.
    """

    def __init__(self, protocol: Protocol, seed: int | None = None, max_clients: int = 10_000) -> None:
        if max_clients < 1:
            raise SpecError(f"a session needs at least one client, got max_clients={max_clients}")
        self.protocol, self.max_clients = protocol, max_clients
        self.n_resyncs = 0
        self._wiring = Wiring.of(protocol)
        self._seed = secrets.randbits(64) if seed is None else seed
        self._session = secrets.token_bytes(8)
        self._sequence = 0  # over all clients, so that the numbers of one client never repeat
        self._confirmed: dict[ClientId, Known] = {}
        self._pending: dict[ClientId, Known] = {}
        self._exact: set[str] = set()
        self._newest: Model | None = None
        self._coded = _Once()

    def send(self, client: ClientId, tensors: Mapping[str, Any] | Model) -> bytes:
        """A frame that brings a client to this model. A `Model` spares a copy when many clients are sent the same."""
        model = self.model(tensors)
        known = self._confirmed.get(client)
        if known is None or not known.end.held.fits(model) or not known.model.same_types(model):
            return self._send_full(client, model)
        self._sequence += 1
        if known.model.same_as(model):
            end = replace(known.end, sequence=self._sequence)
            self._pending[client] = Known(end, model)
            return seal(Kind.UNCHANGED, self._sequence, end.digest())
        return self._send_delta(client, known, model)

    def model(self, tensors: Mapping[str, Any] | Model) -> Model:
        """Tensors as they go to clients. What was an integer once stays exact, also when a mean makes it a float."""
        model = Model.of(tensors, self._exact)
        self._exact |= model.exact.keys()
        if self._newest is None or not self._newest.same_as(model):
            self._newest = model
        return self._newest  # one object for one model: that is how clients in step are told

    def resync(self, client: ClientId, model: Model | None = None) -> bytes:
        """A full frame with this model, or with the one last sent to a client."""
        if model is None and client not in self._pending:
            raise EncodeError(f"nothing was sent to client {client} yet, so there is nothing to send again")
        self.n_resyncs += 1
        LOG.warning("resync of client %s: sending the whole model", client)
        return self._send_full(client, self._pending[client].model if model is None else model)

    def receive(self, client: ClientId, answer: Piece) -> Tensors | None:
        """The client's model, or None if it only acknowledged.

        ResyncNeeded: the client asks for a full frame (see `resync`). DecodeError: the answer is of no use; the client is
        forgotten, so that it gets a full frame next time.
        """
        try:
            return self._receive(client, open_frame(answer))
        except ResyncNeeded:
            self._confirmed.pop(client, None)
            raise
        except DecodeError:
            self.forget(client)
            raise

    def forget(self, client: ClientId) -> None:
        """Send this client a full frame next time."""
        self._confirmed.pop(client, None)
        self._pending.pop(client, None)

    def digest(self, client: ClientId) -> bytes | None:
        """The digest of a client's confirmed end; the client's own is the same."""
        known = self._confirmed.get(client)
        return None if known is None else known.end.digest()

    def _send_full(self, client: ClientId, model: Model) -> bytes:
        self._sequence += 1
        first = self._coded.once(model, (), lambda: first_ends(self._session, 0, self._wiring, model)[0])
        self._pending[client] = Known(replace(first, sequence=self._sequence), model)
        raw = wire.dumps(model.tensors(), "raw")
        sections = (self._session, self._wiring.to_json(), pack_names(model.exact), raw)
        return seal(Kind.FULL, self._sequence, bytes(DIGEST_BYTES), *sections)

    def _send_delta(self, client: ClientId, known: Known, model: Model) -> bytes:
        before, draw = known.end, self._draw(client)
        alike = (before.down, before.held, known.model, draw)  # clients alike in these get the same frame
        frame, held, down = self._coded.once(model, alike, lambda: self._code(known, model, draw))
        after = replace(before, sequence=self._sequence, held=held, down=down)
        self._pending[client] = Known(after, model)
        changed = pack_exact(before.held.differing(model))
        return seal(Kind.DELTA, self._sequence, before.digest(), frame, changed)

    def _draw(self, client: ClientId) -> int:
        """Clients with the same number draw alike."""
        number = crc32(repr(client).encode())
        return number if self._wiring.draws is None else number % self._wiring.draws

    def _code(self, known: Known, model: Model, draw: int) -> tuple[bytes, Model, State]:
        """The downlink's frame, what the client will hold, and the channel's state then."""
        layout = model.layout
        x = layout.split(self._carried(known, model))
        sent = self._wiring.down.send(x, known.end.down, fold(self._seed, draw))
        return sent.frame, model.changed(layout.flatten(sent.value), {}), sent.state

    def _carried(self, known: Known, model: Model) -> F32:
        """The model, or the step to it from where the client is (for `exact` protocols: from where it was meant to be)."""
        if not self._wiring.carries_update:
            return model.flat
        return model.flat - (known.model if self._wiring.keeps_model else known.end.held).flat

    def _receive(self, client: ClientId, opened: Opened) -> Tensors | None:
        if opened.kind == Kind.RESYNC:
            reason = repr(bytes(opened.body.section("reason")[:MAX_REASON]).decode(errors="replace"))
            raise ResyncNeeded(f"client {client} asks for a resync: {reason}")
        pending = self._pending.get(client)
        if pending is None:
            raise StateMismatch(f"client {client} answers, but it was asked nothing; it will be resynchronised")
        if opened.sequence != pending.end.sequence or opened.digest != pending.end.digest():
            raise StateMismatch(
                f"client {client} answers frame {opened.sequence} with memory {opened.digest.hex()}, expected frame "
                f"{pending.end.sequence} and {pending.end.digest().hex()}; it needs a resync",
                *(opened.sequence, pending.end.sequence),
            )
        if opened.kind == Kind.ACK:
            opened.body.end()
            self._confirm(client, pending)
            return None
        if opened.kind != Kind.UPDATE:
            raise DecodeError(f"a client sends no frame of kind {opened.kind.name}")
        return self._receive_update(client, pending, opened)

    def _receive_update(self, client: ClientId, pending: Known, opened: Opened) -> Tensors:
        end = pending.end
        frame, rest = opened.body.section("update"), opened.body.section("exact")
        opened.body.end()
        value, up = self._wiring.up.receive(frame, end.up)
        exact = unpack_exact(rest, end.held)
        base = pending.model if self._wiring.keeps_model else end.held
        self._confirm(client, Known(replace(end, up=up), pending.model))
        return end.held.changed(base.flat + end.held.layout.flatten(value), exact).tensors()

    def _confirm(self, client: ClientId, known: Known) -> None:
        self._confirmed.pop(client, None)
        self._confirmed[client] = known  # the one heard of last is last
        while len(self._confirmed) > self.max_clients:
            self._confirmed.pop(next(iter(self._confirmed)))
        self._pending.pop(client, None)


class _Once:
    """Results for the newest model, each computed once for the same objects (which it keeps, so that they stay the same)."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._results: dict[tuple[Any, ...], Any] = {}

    def once(self, model: Model, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        if model is not self._model:
            self._model, self._results = model, {}
        if key not in self._results:  # the parts of a key hash by identity
            self._results[key] = compute()
        return self._results[key]
