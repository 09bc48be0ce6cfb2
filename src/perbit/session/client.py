"""The client's side: its end in memory or in a file, replaced only when the answer is made."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perbit import wire
from perbit.bits import Piece
from perbit.errors import DecodeError, EncodeError, StateMismatch
from perbit.session import statefile
from perbit.session.end import End, first_ends, pack_exact, unpack_exact, unpack_names
from perbit.session.envelope import Kind, Opened, ResyncNeeded, ask_for_resync, open_frame, seal
from perbit.session.model import Model, Tensors
from perbit.session.wiring import Wiring

LOG = logging.getLogger("perbit.session")


class ClientSession:
    """Receives models and answers. With a path the end is kept in that file, so it outlives the process.

    The protocol comes with the server's full frame: there is nothing to configure, and nothing to get wrong.
    """

    def __init__(self, path: Path | None = None, seed: int | None = None) -> None:
        self.path = path
        self._seed = secrets.randbits(64) if seed is None else seed
        self._end = None if path is None else statefile.load(path)
        self._received: End | None = None

    @property
    def digest(self) -> bytes | None:
        """The digest of the end this client keeps; the server's own for it is the same."""
        return None if self._end is None else self._end.digest()

    def receive(self, frame: Piece) -> Tensors:
        """The model to train or evaluate. ResyncNeeded has the answer that makes the server send everything."""
        try:
            self._received = self._apply(open_frame(frame))
        except DecodeError as error:
            self._received = None
            LOG.warning("resync needed: %s", error)
            raise ResyncNeeded(str(error), ask_for_resync(frame, str(error))) from error
        return self._received.held.tensors()

    def reply(self, tensors: Mapping[str, Any] | None = None) -> bytes:
        """The answer to the last frame: the trained model, or nothing. This is the moment the state moves on."""
        end = self._received
        if end is None:
            raise EncodeError("there is no frame to answer; call receive first, and answer once")
        answer, after = (
            self._acknowledge(end) if tensors is None else self._update(end, Model.of(tensors, end.held.exact))
        )
        self._keep(after)
        self._received = None
        return answer

    def _apply(self, opened: Opened) -> End:
        if opened.kind == Kind.FULL:
            return self._start(opened)
        end = self._end
        if end is None:
            raise StateMismatch("this client holds no state, or lost it")
        if opened.sequence <= end.sequence:
            raise StateMismatch(f"frame {opened.sequence} is an old one, the client is at {end.sequence}")
        if opened.digest != (own := end.digest()):
            raise StateMismatch(f"the frame was made against memory {opened.digest.hex()}, the client's is {own.hex()}")
        if opened.kind == Kind.UNCHANGED:
            opened.body.end()
            return replace(end, sequence=opened.sequence)
        if opened.kind != Kind.DELTA:
            raise DecodeError(f"a server sends no frame of kind {opened.kind.name}")
        return self._move(end, opened)

    def _start(self, opened: Opened) -> End:
        session = bytes(opened.body.section("session"))
        old = self._end
        if old is not None and old.session == session and opened.sequence <= old.sequence:
            raise StateMismatch(f"full frame {opened.sequence} is an old one, the client is at {old.sequence}")
        wiring = Wiring.from_json(opened.body.section("channels"))
        exact = unpack_names(opened.body.section("exact"))
        model = Model.of(wire.loads(opened.body.section("model")), exact)
        opened.body.end()
        if old is not None:
            LOG.warning("resync: full frame %d replaces what this client held", opened.sequence)
        return first_ends(session, opened.sequence, wiring, model)[1]

    def _move(self, end: End, opened: Opened) -> End:
        frame, rest = opened.body.section("step"), opened.body.section("exact")
        opened.body.end()
        value, down = end.wiring.down.receive(frame, end.down)
        exact = unpack_exact(rest, end.held)
        held = end.held.changed(end.held.layout.flatten(value), exact)
        return replace(end, sequence=opened.sequence, held=held, down=down)

    def _acknowledge(self, end: End) -> tuple[bytes, End]:
        return seal(Kind.ACK, end.sequence, end.digest()), end

    def _update(self, end: End, trained: Model) -> tuple[bytes, End]:
        held = end.held
        if not trained.fits(held):
            raise EncodeError(
                "the trained model must have the tensors that were received: same names, order and shapes"
            )
        update = held.layout.split(trained.flat - held.flat)
        sent = end.wiring.up.send(update, end.up, self._seed)
        exact = pack_exact(held.differing(trained))
        return seal(Kind.UPDATE, end.sequence, end.digest(), sent.frame, exact), replace(end, up=sent.state)

    def _keep(self, end: End) -> None:
        """Write the file first: if that fails, this client is where it was."""
        if self.path is not None and not self._is_kept(end):
            if not self.path.exists():
                statefile.remove_stale(self.path.parent)
            statefile.save(self.path, end)
        self._end = end

    def _is_kept(self, end: End) -> bool:
        """Whether only the number of the frame moved, as in rounds of evaluation: not worth writing a model."""
        old = self._end
        same = old is not None and (old.held, old.up, old.down) == (end.held, end.up, end.down)
        return same and self.path is not None and self.path.exists()
