"""The way up: which answers are taken, what becomes of the others, and of the clients that sent them."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np

from perbit.coding.bits import Piece
from perbit.errors import DecodeError, StateMismatch
from perbit.session.bounds import NormBound, ResyncBound, TooManyResyncs
from perbit.session.envelope import MAX_REASON, Envelope, Kind, ResyncNeeded, StaleAnswer, opened
from perbit.session.model import Tensors, read_exact
from perbit.session.sending import Sending
from perbit.session.serverstate import ClientId, Known, Pending

Absent = Literal["predicted", "ignored"]
_FROM_CLIENTS = (Kind.ACK, Kind.UPDATE, Kind.RESYNC)
_BYTES_PER_VALUE, _HEAD = 16, 1 << 16  # more than any codec needs for a value, and for names and shapes


class Receiving(Sending):
    """Takes an answer, or leaves everything as it was.

    An answer that is stale, or made against the right memory and still of no use, is as good as lost: the client keeps both its
    last states, so nobody needs a full model because of it. Only who holds something else than the server thinks is a stranger.
    """

    absent: Absent
    _norms: NormBound
    _resyncs: ResyncBound

    def _receive(self, client: ClientId, frame: Piece) -> Tensors | None:
        try:
            return self._take_answer(client, self._opened(frame))
        except StaleAnswer:
            raise
        except StateMismatch as error:
            if not self._may_start_anew(client):
                raise TooManyResyncs(f"client {client} asked for the whole model too often: {error}") from error
            self._resyncs.promise(client)
            raise
        except DecodeError:
            self._abandon(client)
            raise

    def _refuse_stale(self, client: ClientId, answer: Envelope) -> None:
        """What changes nothing is refused first: a call that is noted costs room on disk, and this one a stranger can repeat for ever."""
        pending = self._pending.get(client)
        if answer.kind in _FROM_CLIENTS and self._is_stale(client, answer):
            waited = "nothing" if pending is None else f"an answer to {pending.sequence}"
            raise StaleAnswer(f"client {client} answers frame {answer.sequence}, but {waited} was waited for")
        if pending is None and not self._resyncs.has_more(client):
            raise TooManyResyncs(f"client {client} asked for the whole model too often")

    def _may_start_anew(self, client: ClientId) -> bool:
        """The client holds something else: it gets a full frame, unless it had enough of them."""
        allowed = self._resyncs.allows(client)
        if allowed:
            self._forget(client)
        else:
            self._abandon(client)
        return allowed

    def _may_have_all(self, client: ClientId) -> bool:
        """Whether a full frame may go out at once: one was promised when the client asked, or there is one more."""
        return self._resyncs.is_promised(client) or self._may_start_anew(client)

    def _opened(self, frame: Piece) -> Envelope:
        model = self._model
        if model is None:
            raise DecodeError("the session has sent nothing yet that could be answered")
        most = _BYTES_PER_VALUE * model.layout.n + model.n_bytes + _HEAD
        if len(frame) > most:
            raise DecodeError(f"the answer has {len(frame)} bytes, no answer about this model has more than {most}")
        return opened(frame)

    def _take_answer(self, client: ClientId, answer: Envelope) -> Tensors | None:
        if answer.kind not in _FROM_CLIENTS:
            raise DecodeError(f"a client sends no frame of kind {answer.kind.name}")
        self._refuse_stale(client, answer)
        pending = self._pending.get(client)
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
        return self._take_update(client, pending, answer)

    def _is_stale(self, client: ClientId, answer: Envelope) -> bool:
        """Whether an answer comes too late or twice. A client that could not even read a frame's number says 0."""
        pending, known = self._pending.get(client), self._clients.get(client)
        if answer.kind != Kind.RESYNC:
            return pending is None or answer.sequence < pending.sequence
        settled = pending.sequence - 1 if pending is not None else known.sequence if known is not None else 0
        return 0 < answer.sequence <= settled

    def _take_update(self, client: ClientId, pending: Pending, answer: Envelope) -> Tensors:
        model, names, anew = self._present_model(), pending.names, None
        frame, rest, told = (answer.body.section(name) for name in ("update", "exact", "names"))
        answer.body.end()
        exact = read_exact(rest, model.exact_kinds)
        if len(told):
            names = self._parts.shared(self._names(told), (known.names for known in self._clients.values()))
            anew = self.protocol.uplink.init(self._parts.layout(model.layout, names))[1]
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused, not warned of
            update = self._average.read(client, frame, anew)
        norm = self._norms.check(client, update.value)
        if anew is not None:
            self._average.restart(client, anew)
        shift = self._average.shift(client) if self.absent == "predicted" else None
        self._average.add(client, update)
        self._norms.count(norm)
        self._confirm(client, pending, names)
        flat = self._bases[pending.version] - (update.value if shift is None else update.value + shift)
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

    def _confirm(self, client: ClientId, pending: Pending, names: tuple[str, ...] | None) -> None:
        """The client is where the message led it; the one heard of last is last."""
        if self._clients.pop(client, None) is not None:
            self.protocol.downlink.release(self._server.downlink, self._places.get(client))
        self._clients[client] = Known(pending.sequence, pending.version, names)
        self._places.put(client, pending.place)
        del self._pending[client]
