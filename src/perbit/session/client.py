"""The client's side: what it holds, in memory or in files, replaced only when an answer is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from perbit.channels.agreed import read_planned
from perbit.coding.bits import Piece
from perbit.coding.cost import Budget, Cost
from perbit.errors import DecodeError, EncodeError, PerbitError, StateMismatch
from perbit.kernels.api import F32
from perbit.printing import logger
from perbit.protocols.downlinks import Start, Versions
from perbit.protocols.protocol import up_seed
from perbit.randomness import fold
from perbit.session.clientfiles import ClientFiles
from perbit.session.envelope import Envelope, Kind, ResyncNeeded, WayDown, ask_for_resync, enclose, opened
from perbit.session.held import Held, Holding
from perbit.session.model import Model, Tensors, answered, pack_exact, partial, read_exact
from perbit.session.once import Once
from perbit.session.seal import ANYBODY, Seal, Way
from perbit.session.terms import Terms

LOG = logger("perbit.session")


@dataclass(frozen=True, eq=False)
class _Task:
    """A message under way: what the client holds if it answers, and what it went on from."""

    terms: Terms
    base: Held | None
    held: Held
    unsent: float = 1.0  # how much of what the uplink owes is in the model that was handed out

    @cached_property
    def model(self) -> Model:
        shared, owed = self.held.model(self.terms), self.terms.uplink.owed(self.held.up)
        if owed is None or not self.unsent:
            return shared
        start = shared.flat.copy()
        into = shared.layout.split(start)
        for name, part in self.held.up.layout.split(owed).items():
            into[name] -= np.float32(self.unsent) * part
        return replace(shared, flat=start)

    @property
    def digest(self) -> bytes:
        return self.held.digest(self.terms)


class ClientSession:
    """Receives models and answers. The protocol comes with the server's first message: there is nothing to configure.

    A client keeps the last two states that it answered from, so that an answer which the server did not get, or got too late,
    costs nothing: the next message goes on from the state before.

    Args:
        folder: where its state is kept, so that it outlives the process; None: in memory only.
        shared: for simulations: clients in step share what they decode.
        key: the server's, if it has one: frames without a good seal are refused.
    """

    def __init__(
        self, folder: str | Path | None = None, *, shared: Once | None = None, key: bytes | None = None
    ) -> None:
        self._seal = Seal(key)
        self._files = None if folder is None else ClientFiles(Path(folder))
        self._holding: Holding | None = None if self._files is None else self._files.load()
        self._task: _Task | None = None
        self._shared = shared

    @property
    def state(self) -> Holding | None:
        """What this client holds between two messages: a value that can be given to another `ClientSession`."""
        return self._holding

    @state.setter
    def state(self, holding: Holding | None) -> None:
        self._holding, self._task = holding, None

    @property
    def digest(self) -> bytes | None:
        """The digest of what this client holds; the server's own for it is the same."""
        return None if self._holding is None else self._holding.now.digest(self._holding.terms)

    def receive(self, frame: Piece, unsent: float = 1.0) -> Tensors:
        """The model to train or evaluate. ResyncNeeded has the answer that makes the server send everything.

        Args:
            frame: the server's.
            unsent: how much of what this client could not send so far is in the model, where the protocol lets it start `apart`: 1 to
                train; 0 to evaluate, which gives the model as the server has it; 1/weight if updates are multiplied by a weight.
        """
        try:
            task = self._apply(opened(self._seal.open(frame, Way.DOWN, ANYBODY, self._number)))
            self._task = replace(task, unsent=unsent)
        except PerbitError as error:  # whatever is wrong with what was read, it is the frame's fault
            self._task = None
            LOG.warning("resync needed: %s", error)
            raise ResyncNeeded(str(error), self._ask_for_resync(frame, str(error))) from error
        return self._task.model.tensors()

    def _ask_for_resync(self, frame: Piece, reason: str) -> bytes:
        """The answer to a frame that this client cannot use."""
        with suppress(DecodeError):
            frame = self._seal.open(frame, Way.DOWN, ANYBODY, self._number)
        return self._seal.close(ask_for_resync(frame, reason), Way.UP, ANYBODY)

    @property
    def _number(self) -> int:
        return ANYBODY if self._holding is None else self._holding.terms.number

    def reply(
        self,
        tensors: Mapping[str, Any] | None = None,
        *,
        update: Mapping[str, Any] | None = None,
        exact: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The answer to the last message; this is the moment the state moves on.

        Args:
            tensors: the trained model, or only some of its tensors (personal layers and statistics stay at home then).
            update: in place of a trained model, what the server is to subtract: a gradient, or the way back.
            exact: with `update`, the tensors that are not floats, as they are now.
        """
        task = self._task
        if task is None:
            raise EncodeError("there is no frame to answer; call receive first, and answer once")
        if tensors is not None and (update is not None or exact is not None):
            raise EncodeError("an answer is a trained model, or an update with exact tensors, not both")
        if tensors is not None:
            names, trained = partial(tensors, task.model)
            answer, held = self._update(task, names, task.model.flat - trained.flat, trained)
        elif update is not None:
            changed = task.model.with_exact(exact or {})
            answer, held = self._update(task, None, changed.layout.flatten(update), changed)
        else:
            answer, held = enclose(Kind.ACK, task.held.sequence, task.digest), task.held
        base = task.base if self._shared is None else None  # in a simulation no answer is lost
        self._keep(Holding(task.terms, base, held))
        self._task = None
        return self._seal.close(answer, Way.UP, task.terms.number)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _apply(self, message: Envelope) -> _Task:
        if message.kind == Kind.FULL:
            return self._start(message)
        holding = self._holding
        if holding is None:
            raise StateMismatch("this client holds no state, or lost it")
        if message.sequence <= holding.now.sequence:
            raise StateMismatch(f"frame {message.sequence} is an old one, the client is at {holding.now.sequence}")
        if message.kind == Kind.UNCHANGED:
            message.body.end()
            base = holding.at(message.digest)
            return _Task(holding.terms, base, replace(base, sequence=message.sequence))
        if message.kind != Kind.DELTA:
            raise DecodeError(f"a server sends no frame of kind {message.kind.name}")
        return self._move(holding, message)

    def _start(self, message: Envelope) -> _Task:
        terms = Terms.from_bytes(message.body.section("terms"))
        self._check_new(terms, message.sequence)
        version, start, frames, rest = WayDown.read(message.body)
        first = message.body.section("model")
        message.body.end()
        layout = terms.layout
        Budget.of_frame(len(message.body.view)).spend(Cost(4 * layout.n))  # a model that large must come with its bytes
        down, point = self._once(None, (bytes(first),), lambda: _first_model(terms, first))
        if frames or not len(first):
            down, point = self._accepted(terms, down, frames, start)
        if self._holding is not None:
            LOG.warning("resync: full frame %d replaces what this client held", message.sequence)
        held = Held(message.sequence, version, point, _exact(terms, rest), terms.uplink.init(layout)[0], down)
        return _Task(terms, None, held)

    def _check_new(self, terms: Terms, sequence: int) -> None:
        """A full frame may replace everything, unless it is an old one that comes again."""
        if self._holding is None:
            return
        old, now = self._holding.terms, self._holding.now
        is_same_run = (old.session, old.incarnation) == (terms.session, terms.incarnation)
        if is_same_run and sequence <= now.sequence:
            raise StateMismatch(f"full frame {sequence} is an old one, the client is at {now.sequence}")

    def _move(self, holding: Holding, message: Envelope) -> _Task:
        terms = holding.terms
        version, start, frames, rest = WayDown.read(message.body)
        message.body.end()
        base = holding.at(message.digest)
        down, point = self._accepted(terms, base.down, frames, start)
        exact = {**base.exact, **read_exact(rest, base.model(terms).exact_kinds)}
        held = Held(message.sequence, version, point, exact, base.up, down, base.names)
        return _Task(terms, base, held)

    def _accepted(self, terms: Terms, down: Any, frames: list[Piece], start: Start) -> tuple[Any, F32]:
        return self._once(down, (start, *map(bytes, frames)), lambda: terms.downlink.accept(down, frames, start))

    def _once(self, down: Any, given: tuple[Any, ...], compute: Callable[[], tuple[Any, F32]]) -> tuple[Any, F32]:
        """The downlink and the model, shared with the clients that come from the same downlink and are given the same."""
        if self._shared is None:
            return compute()
        shared: tuple[Any, F32] = self._shared.once(down, given, compute)
        return shared

    def _update(self, task: _Task, names: tuple[str, ...] | None, update: F32, trained: Model) -> tuple[bytes, Held]:
        terms, held, told = task.terms, task.held, b""
        if names != held.names:
            told = json.dumps(names or [name for name, _, _ in terms.schema]).encode()
            held = replace(held, names=names, up=terms.uplink.init(answered(terms.layout, names))[0])
        if names is not None:
            parts, layout = task.model.layout.split(update), held.up.layout
            update = layout.flatten({name: parts[name] for name, _ in layout.tensors})
        sent = terms.uplink.send_flat(update, held.up, up_seed(fold(terms.seed, held.version), terms.number))
        exact = pack_exact(task.model.differing(trained))
        answer = enclose(Kind.UPDATE, held.sequence, task.digest, sent.frame, exact, told)
        return answer, replace(held, up=sent.state)

    def _keep(self, holding: Holding) -> None:
        """Write the file first: if that fails, this client is where it was."""
        old = self._holding
        if self._files is not None and not (old is not None and holding.now.is_like(old.now)):
            self._files.save(holding)
        self._holding = holding


def _first_model(terms: Terms, data: Piece) -> tuple[Any, F32]:
    """The downlink and the first model of a session; later there is none, and the frames bring everything."""
    layout = terms.layout
    plan = terms.downlink.first if isinstance(terms.downlink, Versions) else "raw"
    tensors = read_planned(data, dict(layout.tensors), plan) if len(data) else None
    known = np.zeros(layout.n, np.float32) if tensors is None else layout.flatten(tensors)
    known.flags.writeable = False
    return terms.downlink.init(layout, known, 1)[2], known


def _exact(terms: Terms, data: Piece) -> Tensors:
    """The exact tensors of a full frame."""
    agreed = {name: (dtype, shape) for name, dtype, shape in terms.schema if name in terms.exact}
    exact = read_exact(data, agreed)
    if exact.keys() != agreed.keys():
        raise DecodeError("the exact tensors are not those that the terms name")
    return exact
