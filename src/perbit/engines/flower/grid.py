"""The server's side: a Grid around Flower's own. Strategies see models, the network sees frames."""

from __future__ import annotations

import copy
import math
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from perbit.engines.flower import folders
from perbit.engines.flower.consistency import Rounds, check_arrays, check_weight, without_our_metrics
from perbit.engines.flower.goodbye import say_goodbye
from perbit.engines.flower.metrics import client_ms, ms_since, with_metrics, with_round_ratio
from perbit.engines.flower.records import (
    RUN,
    TIMES,
    find_frame,
    framed,
    plain_bytes,
    to_record,
    to_tensors,
    with_record,
    without,
)
from perbit.errors import DecodeError
from perbit.plan.plan import PlanLike
from perbit.printing import LONGEST, logger, printable
from perbit.protocols.downlinks import Averaged
from perbit.protocols.protocol import Protocol
from perbit.session import (
    Model,
    ResyncNeeded,
    ServerSession,
    StaleAnswer,
    TooLarge,
    TooManyResyncs,
    Traffic,
    protocol_of,
)
from perbit.session.server import Absent

LOG = logger("flwr.perbit")  # beside Flower's own messages
_DROPPED = 0  # Flower's code for errors that are not its own
_MOST_MODELS = 2  # under way at once: a session takes answers to its latest two
_MOST_RESYNCS = 2  # of one message; a client that still cannot use it is left out
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 3.0  # seconds between two looks for replies


@dataclass(frozen=True)
class _Asked:
    """A message on its way, and what it cost so far; `plain`: the bytes of its arrays without perbit."""

    message: Message
    record: str
    model: Model
    plain: int
    down_bytes: int = 0
    up_bytes: int = 0
    encode_ms: float = 0.0
    resyncs: int = 0

    @property
    def node(self) -> int:
        return int(self.message.metadata.dst_node_id)

    @property
    def known_as(self) -> str:
        """The number of the message that the caller was given."""
        return str(self.message.metadata.message_id)


class CompressedGrid(Grid):
    """Wrap the grid that Flower gives you: `strategy.start(grid=CompressedGrid(grid), ...)`; clients need `perbit_mod()`.

    The model is the first ArrayRecord of a message; other records travel as they are. In a `with` block, the nodes are told at
    its end that the run is over, and delete what they remember of it; without one, this happens when the grid is let go.

    Args:
        grid: Flower's own.
        up: codec spec or plan of the nodes' updates; None: the protocol's own.
        down: codec spec or plan of the model.
        protocol: the name of a preset (`"mcm"`) or a Protocol; None: `federated`.
        seed: fixes every random choice, the nodes' too; None draws one.
        first: codec spec of models that are sent whole, for `federated`: "raw" is exact, "fp16" half the bytes.
        population: how many nodes there are, absent ones included; None: those heard of (for `rand_mcm_averaged`, those that the
            grid knows when the first message is pushed).
        max_clients: of more nodes, those unheard of for longest are forgotten, and get the whole model should they come back.
        absent: "predicted": replies are shifted so that a strategy's mean counts absent nodes as their memories predict, in
            protocols with a memory of each node; "ignored": replies are the nodes' own models.
        folder: the run's own, for what the server must not lose: a ServerApp that was killed goes on from there, with the same nodes
            and without sending full models again. The server's memories of each node are there instead of in its own memory.
        memory: how much may be held between two messages ("2 GB"); nodes unheard of for longest are forgotten where that is too little.
        max_norm: leave out updates whose norm is more than so many times the median of the latest ones.
        max_resyncs: how many full models a node may bring about of one version of the model.
        key: 16 to 64 secret bytes that `perbit_mod(key=...)` has too, where the transport has no TLS.
        alike: Flower's strategies end the run when one reply has other tensors or metrics than the rest: replies unlike most of their
            round are errors instead, which leave out that node only; False passes them on, for strategies that expect them.
        weighted_by: the metric that weighs replies, as the strategy's `weighted_by_key`: a reply in which it is not above zero, or no
            number, is an error. None: not looked at.
        max_weight: leave out replies that weigh more than so many times the median of their round; None: take them all.
        goodbye_seconds: how long to wait at the end for the nodes to delete what they remember; 0: they keep it.
    """

    def __init__(
        self,
        grid: Grid,
        up: PlanLike | None = None,
        down: PlanLike | None = None,
        protocol: Protocol | str | None = None,
        seed: int | None = None,
        *,
        first: str = "raw",
        population: int | None = None,
        max_clients: int | None = None,
        absent: Absent = "predicted",
        folder: str | Path | None = None,
        memory: str | int | None = None,
        max_norm: float | None = None,
        max_resyncs: int = 3,
        key: bytes | None = None,
        alike: bool = True,
        weighted_by: str | None = "num-examples",
        max_weight: float | None = None,
        goodbye_seconds: float = 60.0,
    ) -> None:
        chosen = protocol_of(protocol, up, down, **({} if first == "raw" else {"first": first}))
        limits: dict[str, Any] = {"max_clients": max_clients, "memory": memory, "max_norm": max_norm}
        self.session = ServerSession(
            chosen,
            seed,
            population=population,
            absent=absent,
            folder=folder,
            max_resyncs=max_resyncs,
            key=key,
            **limits,
        )
        self._home = None if folder is None else folders.home_secret(Path(folder))
        self.traffic = Traffic()
        self.goodbye_seconds, self.alike = goodbye_seconds, alike
        self._rounds = Rounds(weighted_by, max_weight)
        self._one_by_one = False  # once a reply could not be read
        self._grid = grid
        self._newest: dict[int, str] = {}  # the message that each node was pushed last: no other is worth an answer
        self._asked: dict[str, _Asked] = {}  # by the number of the message that was pushed last
        self._resent: dict[str, str] = {}  # from the number the caller knows to that one
        self._members: dict[int, str] = {}  # nodes that were sent a model, and the type of the last message with one
        if folder is None:  # with one the run may go on: only `close` knows that it is over
            finaliser = weakref.finalize(self, say_goodbye, grid, self._members, goodbye_seconds, self._home)
            finaliser.atexit = False  # when the process ends the run is over already, and nothing can be pushed

    def __enter__(self) -> CompressedGrid:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None or self._home is None:
            self.close()
        else:  # a run that failed can go on from its folder
            self.session.close()
            self._members.clear()

    def close(self) -> None:
        """Tell the nodes that the run is over. Those that come back later start anew, with the whole model."""
        for node in self._members:
            self.session.forget(node)
        folders.forget_home(self.session.protocol.folder)
        self.session.close(is_over=True)
        say_goodbye(self._grid, self._members, self.goodbye_seconds, self._home)

    # --- the parts of a Grid that know about frames --------------------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages, models as frames. Those with the same model go one after the other, for each model is a version."""
        given = list(messages)
        models = self._models_of(given)
        alike: dict[int, list[int]] = {}
        for number, model in enumerate(models):
            alike.setdefault(id(model), []).append(number)
        pushed = {i: self._push(given[i], models[i]) for numbers in alike.values() for i in numbers}
        return [message_id for _, message_id in sorted(pushed.items()) if message_id is not None]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies, frames as models. A client that asks for a resync gets a full frame; its reply comes later."""
        numbers = [self._resent.get(known, known) for known in message_ids]
        parts = [[number] for number in numbers] if self._one_by_one else [numbers]
        answers = (answer for part in parts for answer in self._answers(part))
        return [answer for answer in answers if answer is not None]

    def _answers(self, numbers: list[str]) -> list[Message | None]:
        """Where one reply cannot be read, Flower raises, and the others of that call are lost: from then on they come one by one."""
        try:
            replies = list(self._grid.pull_messages(numbers))
        except Exception as error:
            if not _is_about_content(error):
                raise
            if len(numbers) == 1:
                return [self._unread(numbers[0], error)]
            self._one_by_one = True
            return [answer for number in numbers for answer in self._answers([number])]
        return [self._answer(reply) for reply in replies]

    def _unread(self, number: str, error: Exception) -> Message | None:
        asked, why = self._asked.pop(number, None), DecodeError(f"Flower cannot read it: {error!r}")
        if asked is None:
            LOG.warning("perbit: no reply to message %s: %s", number, why)
            return None
        self._resent.pop(asked.known_as, None)
        return self._dropped(asked, why)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and wait for the replies, resyncs included, until all are there or the time is over."""
        before, replies, pause = replace(self.traffic), [], _FIRST_PAUSE
        given = list(messages)
        waiting = dict.fromkeys(self.push_messages(given))
        until = time.monotonic() + (math.inf if timeout is None else timeout)
        while waiting:
            for reply in self.pull_messages(waiting):
                if reply.metadata.reply_to_message_id in waiting:
                    del waiting[reply.metadata.reply_to_message_id]
                    replies.append(reply)
                else:  # a node can write any number into its reply, or one twice
                    self._count_stale(reply.metadata.src_node_id, "nobody waits for it")
            if not waiting or time.monotonic() >= until:
                break
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, 1.3 * pause)
        for message_id in waiting:
            self._give_up(message_id)
        passed = self.traffic.since(before)
        if passed != Traffic():
            LOG.info("perbit: %s", passed)
        replies = [with_round_ratio(reply, passed.ratio) for reply in replies]
        return self._with_odd_ones_out(replies, given) if self.alike else replies

    def _with_odd_ones_out(self, replies: list[Message], messages: list[Message]) -> list[Message]:
        """The same replies, but errors instead of those that a strategy would end the run for."""
        asked = {str(message.metadata.message_id): message for message in messages}
        unlike = self._rounds.odd_ones(replies, asked)
        return [self._left_out(reply, unlike[id(reply)], asked) if id(reply) in unlike else reply for reply in replies]

    def _left_out(self, reply: Message, why: str, asked: dict[str, Message]) -> Message:
        self.traffic.n_dropped += 1
        LOG.warning("perbit: the answer of node %d is dropped: %s", reply.metadata.src_node_id, why)
        error = Error(code=_DROPPED, reason=f"perbit: {why}")
        return Message(error, reply_to=asked[reply.metadata.reply_to_message_id])

    # --- the rest is Flower's -------------------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Any:
        return self._grid.get_nodes()

    def __getattr__(self, name: str) -> Any:
        if name == "_grid":  # not there yet
            raise AttributeError(name)
        return getattr(self._grid, name)

    # --- down -------------------------------------------------------------------------------------------------------------

    def _models_of(self, messages: list[Message]) -> list[Model | None]:
        """The model to be coded in each message: one and the same object for the same model."""
        read: dict[int, tuple[ArrayRecord, Model]] = {}  # a strategy sends one record to all: read once
        distinct: list[Model] = []
        for arrays in filter(None, map(_first_arrays, messages)):
            if id(arrays) not in read:
                self._count_nodes()
                model = self.session.model(to_tensors(arrays))
                known = next((other for other in distinct if other.same_as(model)), model)
                distinct += [] if known is not model else [model]
                read[id(arrays)] = arrays, known
        if len(distinct) > _MOST_MODELS:
            LOG.warning("perbit: all but %d of %d models go as they are, uncompressed", _MOST_MODELS, len(distinct))
        coded = {id(model) for model in distinct[:_MOST_MODELS]}
        found = (read.get(id(_first_arrays(message)), (None, None))[1] for message in messages)
        return [model if id(model) in coded else None for model in found]

    def _push(self, message: Message, model: Model | None) -> str | None:
        if model is None:
            n_bytes = plain_bytes(message.content) if message.has_content() else 0
            self.traffic.down_bytes += n_bytes
            self.traffic.plain_down_bytes += n_bytes
            return self._push_plain(message)
        started, record = time.perf_counter(), next(iter(message.content.array_records))
        plain = model.n_bytes + plain_bytes(without(message.content, record))
        asked = _Asked(message, record, model, plain)
        frame = self.session.send(asked.node, model)
        sent = copy.copy(message)  # shares the metadata; the caller's content, one for all nodes, stays as it is
        self.traffic.plain_down_bytes += plain
        return self._push_frame(asked, frame, sent, started)

    def _count_nodes(self) -> None:
        """A memory that is an average over all nodes needs to know how many they are."""
        if self.session.population is None and isinstance(self.session.protocol.downlink, Averaged):
            self.session.population = max(1, len(list(self._grid.get_node_ids())))

    def _push_plain(self, message: Message) -> str | None:
        return next(iter(self._grid.push_messages([message])), None) or None  # Flower's own: "" if it was not stored

    def _push_frame(self, asked: _Asked, frame: bytes, message: Message, started: float) -> str | None:
        """Push a frame in a message, count it, and remember what it is to be answered with."""
        message.content = with_record(asked.message.content, asked.record, framed(frame))
        if self._home is not None:
            message.content[RUN] = ConfigRecord({"secret": self._home})
        n_bytes = plain_bytes(message.content)
        self.traffic.down_bytes += n_bytes
        self._count_resync(asked.node, frame)
        self._members[asked.node] = message.metadata.message_type
        down_bytes, encode_ms = asked.down_bytes + n_bytes, asked.encode_ms + ms_since(started)
        message_id = self._push_plain(message)
        if message_id is None:
            self.session.forget_pending(asked.node)
        else:
            self._asked.pop(self._newest.get(asked.node, ""), None)
            self._newest[asked.node] = message_id
            self._asked[message_id] = replace(asked, down_bytes=down_bytes, encode_ms=encode_ms)
        return message_id

    def _count_resync(self, node: int, frame: bytes) -> None:
        """A node that was sent a model before gets the whole of one again."""
        if node in self._members and self.session.is_full(frame):
            self.traffic.n_resyncs += 1
            LOG.warning("perbit: resync of node %d with %d bytes", node, len(frame))

    def _resend(self, asked: _Asked) -> bool:
        """Whether a full frame went out in a new message; the caller goes on waiting for the number it knows."""
        if not self.session.is_present(asked.model):  # to go back would lose answers to a newer one
            return False
        started, old = time.perf_counter(), asked.message.metadata
        try:
            frame = self.session.resync(asked.node)
        except TooManyResyncs as error:
            LOG.warning("perbit: %s", error)
            return False
        again = Message(RecordDict(), old.dst_node_id, old.message_type, ttl=old.ttl, group_id=old.group_id)
        sent_as = self._push_frame(replace(asked, resyncs=asked.resyncs + 1), frame, again, started)
        if sent_as is None:
            return False
        self._resent[asked.known_as] = sent_as
        return True

    # --- up ---------------------------------------------------------------------------------------------------------------

    def _answer(self, reply: Message) -> Message | None:
        """What the caller gets for a reply; nothing yet if the client had to be sent a full frame."""
        if reply.has_error():  # Flower writes the reason to its log
            reply.error = Error(reply.error.code, printable(str(reply.error.reason), LONGEST))
        asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
        if asked is None:
            return self._unexpected(reply)
        answer = self._failed(asked, reply.error) if reply.has_error() else self._opened(asked, reply.content)
        if answer is not None:
            self._resent.pop(asked.known_as, None)
        return answer

    def _unexpected(self, reply: Message) -> Message | None:
        """An answer to a message that carried no model; or one that comes after its time, and is of no use any more."""
        n_bytes = 0
        if reply.has_content():
            n_bytes, reply.content = plain_bytes(reply.content), without_our_metrics(reply.content)
        self.traffic.up_bytes += n_bytes
        if not reply.has_content() or find_frame(reply.content) is None:
            self.traffic.plain_up_bytes += n_bytes
            return reply
        self._count_stale(reply.metadata.src_node_id, "nobody waits for it any more")
        return None

    def _give_up(self, message_id: str) -> None:
        """The time is over: the client stays where it was, whether it got the message or not."""
        LOG.warning("perbit: no reply to message %s in time", message_id)
        asked = self._asked.pop(self._resent.pop(message_id, message_id), None)
        if asked is not None:
            self.session.forget_pending(asked.node)

    def _opened(self, asked: _Asked, content: RecordDict) -> Message | None:
        n_bytes = plain_bytes(content)
        self.traffic.up_bytes += n_bytes
        asked = replace(asked, up_bytes=asked.up_bytes + n_bytes)
        try:
            return Message(self._decoded(asked, without_our_metrics(content)), reply_to=asked.message)
        except ResyncNeeded as needed:
            LOG.warning("perbit: %s", needed)
            return None if asked.resyncs < _MOST_RESYNCS and self._resend(asked) else self._dropped(asked, needed)
        except StaleAnswer as stale:
            self._count_stale(asked.node, stale)
            return _error(asked, stale)
        except DecodeError as error:
            return self._dropped(asked, error)

    def _decoded(self, asked: _Asked, content: RecordDict) -> RecordDict:
        started = time.perf_counter()
        found = find_frame(content)
        if found is None:
            raise DecodeError("the answer holds no frame of perbit; the ClientApp needs mods=[perbit_mod()]")
        check_arrays(without(content, found.record))
        check_weight(content, self._rounds.weighted_by)
        tensors = self.session.receive(asked.node, found.frame)
        plain = without(content, TIMES, found.record)  # beside a mere acknowledgement, the app's arrays as they are
        plain_up = plain_bytes(plain)
        if tensors is not None:
            plain = without(with_record(content, found.record, to_record(tensors)), TIMES)
            plain_up += sum(x.nbytes for x in tensors.values())
        self.traffic.plain_up_bytes += plain_up
        metrics = {
            "perbit-down-bytes": asked.down_bytes,
            "perbit-up-bytes": asked.up_bytes,
            "perbit-ratio": (asked.plain + plain_up) / (asked.down_bytes + asked.up_bytes),
            "perbit-encode-ms": asked.encode_ms + client_ms(content, "encode-ms"),
            "perbit-decode-ms": ms_since(started) + client_ms(content, "decode-ms"),
        }
        return with_metrics(plain, metrics)

    def _dropped(self, asked: _Asked, error: DecodeError) -> Message:
        """The answer is of no use. What the session knows of the client stays, unless the client holds something else."""
        self.session.forget_pending(asked.node)
        self.traffic.n_dropped += 1
        self.traffic.n_too_large += isinstance(error, TooLarge)
        LOG.warning("perbit: the answer of node %d is dropped: %s", asked.node, error)
        return _error(asked, error)

    def _failed(self, asked: _Asked, error: Error) -> Message:
        """The app failed, or Flower lost the message: the client stays where it was."""
        self.session.forget_pending(asked.node)
        self.traffic.n_dropped += 1
        LOG.warning("perbit: node %d failed: %s", asked.node, error.reason)
        return Message(error, reply_to=asked.message)

    def _count_stale(self, node: int, reason: object) -> None:
        self.traffic.n_stale += 1
        LOG.warning("perbit: an answer of node %d is left out: %s", node, reason)


def _first_arrays(message: Message) -> ArrayRecord | None:
    return next(iter(message.content.array_records.values()), None) if message.has_content() else None


def _is_about_content(error: Exception) -> bool:
    """Whether Flower complains of what a node sent, and not of the SuperLink or the run."""
    names = ("UnexpectedObjectContentError", "DecodeError")  # Flower's own, and protobuf's
    return isinstance(error, ValueError | TypeError | LookupError | AttributeError) or type(error).__name__ in names


def _error(asked: _Asked, error: DecodeError) -> Message:
    reason = printable(f"perbit: {type(error).__name__}: {error}", LONGEST)
    return Message(Error(code=_DROPPED, reason=reason), reply_to=asked.message)
