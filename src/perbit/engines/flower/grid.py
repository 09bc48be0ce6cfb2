"""The server's side: a Grid around Flower's own. Strategies see models, the network sees frames."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from perbit.engines.flower.records import (
    ACKNOWLEDGEMENT,
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
from perbit.plan import PlanLike
from perbit.protocol import Protocol
from perbit.session import Model, ResyncNeeded, ServerSession, Traffic, protocol_of

LOG = logging.getLogger("flwr.perbit")  # beside Flower's own messages
_DROPPED = 0  # Flower's code for errors that are not its own
_MOST_RESYNCS = 2  # of one message; a client that still cannot use it is left out
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 3.0  # seconds between two looks for replies


@dataclass(frozen=True)
class _Asked:
    """A message on its way, and what it cost so far; `plain`: the bytes of its arrays without perbit."""

    message: Message
    record: str
    model: Model
    plain: int
    down_bytes: int
    encode_ms: float
    resyncs: int = 0


class CompressedGrid(Grid):
    """Wrap the grid that Flower gives you: `strategy.start(grid=CompressedGrid(grid), ...)`; clients need `perbit_mod()`.

    `up` and `down` are codec specs or plans, for `perbit.session.federated`; or `protocol` is the name of a preset
    (`"mcm"`) or a Protocol. The model is the first ArrayRecord of a message; other records travel as they are.
    """

    def __init__(
        self,
        grid: Grid,
        up: PlanLike | None = None,
        down: PlanLike | None = None,
        protocol: Protocol | str | None = None,
        seed: int | None = None,
    ) -> None:
        self.session = ServerSession(protocol_of(protocol, up, down), seed)
        self.traffic = Traffic()
        self._grid = grid
        self._asked: dict[str, _Asked] = {}  # by the number of the message that was pushed last
        self._resent: dict[str, str] = {}  # from the number the caller knows to that one

    # --- the parts of a Grid that know about frames --------------------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages, models as frames. Each is coded and pushed by itself, so that only one is in memory."""
        models: dict[int, tuple[ArrayRecord, Model]] = {}  # a strategy sends one record to all: coded once
        pushed = (self._push(message, models) for message in messages)
        return [message_id for message_id in pushed if message_id is not None]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies, frames as models. A client that asks for a resync gets a full frame; its reply comes later."""
        replies = self._grid.pull_messages([self._resent.get(known, known) for known in message_ids])
        answers = [self._answer(reply) for reply in replies]
        return [answer for answer in answers if answer is not None]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and wait for the replies, resyncs included, until all are there or the time is over."""
        before, replies, pause = replace(self.traffic), [], _FIRST_PAUSE
        waiting = set(self.push_messages(messages))
        until = time.monotonic() + (math.inf if timeout is None else timeout)
        while waiting:
            news = list(self.pull_messages(waiting))
            replies += news
            waiting -= {reply.metadata.reply_to_message_id for reply in news}
            if not waiting or time.monotonic() >= until:
                break
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, 1.3 * pause)
        for message_id in waiting:
            LOG.warning("perbit: no reply to message %s in time", message_id)
            self._asked.pop(self._resent.pop(message_id, message_id), None)
        if self.traffic != before:
            self._tell(before)
        return replies

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

    def _push(self, message: Message, models: dict[int, tuple[ArrayRecord, Model]]) -> str | None:
        record = next(iter(message.content.array_records), None) if message.has_content() else None
        if record is None:
            return self._push_plain(message)
        started = time.perf_counter()
        arrays = message.content.array_records[record]
        if id(arrays) not in models:
            models[id(arrays)] = arrays, self.session.model(to_tensors(arrays))
        model, plain = models[id(arrays)][1], plain_bytes(message.content)
        frame = self.session.send(message.metadata.dst_node_id, model)
        sent = copy.copy(message)  # shares the metadata; the caller's content, one for all nodes, stays as it is
        sent.content = with_record(message.content, record, framed(frame))
        n_bytes = plain_bytes(sent.content)
        asked = _Asked(message, record, model, plain, n_bytes, _ms_since(started))
        self.traffic.down_bytes += n_bytes
        self.traffic.plain_down_bytes += plain
        return self._remember(self._push_plain(sent), asked)

    def _push_plain(self, message: Message) -> str | None:
        return next(iter(self._grid.push_messages([message])), None) or None  # Flower's own: "" if it was not stored

    def _remember(self, message_id: str | None, asked: _Asked) -> str | None:
        if message_id is not None:
            self._asked[message_id] = asked
        return message_id

    def _resend(self, known: str, asked: _Asked) -> bool:
        """Whether a full frame went out in a new message; the caller goes on waiting for the number it knows."""
        started, old = time.perf_counter(), asked.message.metadata
        frame = self.session.resync(old.dst_node_id, asked.model)
        content = with_record(asked.message.content, asked.record, framed(frame))
        again = Message(content, old.dst_node_id, old.message_type, ttl=old.ttl, group_id=old.group_id)
        n_bytes = plain_bytes(content)
        self.traffic.down_bytes += n_bytes
        self.traffic.n_resyncs += 1
        LOG.warning("perbit: resync of node %d with %d bytes", old.dst_node_id, n_bytes)
        asked = replace(
            asked,
            resyncs=asked.resyncs + 1,
            down_bytes=asked.down_bytes + n_bytes,
            encode_ms=asked.encode_ms + _ms_since(started),
        )
        sent_as = self._remember(self._push_plain(again), asked)
        if sent_as is None:
            return False
        self._resent[known] = sent_as
        return True

    # --- up ---------------------------------------------------------------------------------------------------------------

    def _answer(self, reply: Message) -> Message | None:
        """What the caller gets for a reply; nothing yet if the client had to be sent a full frame."""
        asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
        if asked is None:  # the message carried no model
            return reply
        known = asked.message.metadata.message_id
        if reply.has_error():
            self._resent.pop(known, None)
            return Message(reply.error, reply_to=asked.message)
        try:
            content = self._decoded(asked, reply.content)
        except ResyncNeeded as needed:
            LOG.warning("perbit: %s", needed)
            if asked.resyncs < _MOST_RESYNCS and self._resend(known, asked):
                return None
            answer = self._dropped(asked, needed)
        except DecodeError as error:
            answer = self._dropped(asked, error)
        else:
            answer = Message(content, reply_to=asked.message)
        self._resent.pop(known, None)
        return answer

    def _dropped(self, asked: _Asked, error: DecodeError) -> Message:
        node = asked.message.metadata.dst_node_id
        self.session.forget(node)
        self.traffic.n_dropped += 1
        LOG.warning("perbit: the answer of node %d is dropped, it will be resynchronised: %s", node, error)
        reason = f"perbit: {type(error).__name__}: {error}"
        return Message(Error(code=_DROPPED, reason=reason), reply_to=asked.message)

    def _decoded(self, asked: _Asked, content: RecordDict) -> RecordDict:
        started = time.perf_counter()
        node, found = asked.message.metadata.dst_node_id, find_frame(content)
        if found is None:
            raise DecodeError("the answer holds no frame of perbit; the ClientApp needs mods=[perbit_mod()]")
        up_bytes = plain_bytes(content)
        self.traffic.up_bytes += up_bytes
        tensors = self.session.receive(node, found.frame)
        plain = without(content, TIMES, ACKNOWLEDGEMENT)
        if tensors is not None:
            plain = with_record(plain, found.record, to_record(tensors))
        plain_up = plain_bytes(plain)
        self.traffic.plain_up_bytes += plain_up
        metrics = {
            "perbit-down-bytes": asked.down_bytes,
            "perbit-up-bytes": up_bytes,
            "perbit-ratio": _ratio(asked.plain + plain_up, asked.down_bytes + up_bytes),
            "perbit-encode-ms": asked.encode_ms + _client_ms(content, "encode-ms"),
            "perbit-decode-ms": _ms_since(started) + _client_ms(content, "decode-ms"),
        }
        return _with_metrics(plain, metrics)

    def _tell(self, before: Traffic) -> None:
        down, up = (getattr(self.traffic, name) - getattr(before, name) for name in ("down_bytes", "up_bytes"))
        LOG.info("perbit: %s bytes down, %s bytes up", f"{down:,}", f"{up:,}")


def _with_metrics(content: RecordDict, metrics: dict[str, float | int]) -> RecordDict:
    """Beside the app's own metrics: strategies expect exactly one MetricRecord, so no new one is made."""
    name = next(iter(content.metric_records), None)
    if name is None:
        return content
    return with_record(content, name, MetricRecord({**dict(content.metric_records[name].items()), **metrics}))


def _client_ms(content: RecordDict, name: str) -> float:
    """A time that the client measured, as far as it can be believed."""
    value = content.config_records[TIMES].get(name) if TIMES in content.config_records else None
    return float(value) if isinstance(value, int | float) else 0.0


def _ratio(plain: int, n_bytes: int) -> float:
    return plain / n_bytes if n_bytes else 1.0


def _ms_since(started: float) -> float:
    return 1000 * (time.perf_counter() - started)
