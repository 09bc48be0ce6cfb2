"""The client's side: a mod that turns frames into models before the app sees them, and models into frames afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from perbit.engines.flower.records import (
    ACKNOWLEDGEMENT,
    STATE,
    TIMES,
    find_frame,
    framed,
    to_record,
    to_tensors,
    with_record,
)
from perbit.session import ClientSession, ResyncNeeded
from perbit.session.model import Tensors

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]


def perbit_mod(folder: str | Path | None = None) -> Mod:
    """A mod for `ClientApp(mods=[...])`. What a client must remember is kept in files of `folder` (default: PERBIT_STATE,
    or perbit in the user's state directory), for Flower's own `context.state` may lose large values without a word.

    The codecs and the protocol are the server's choice and come with its messages. Messages without a frame pass through.
    """
    root = Path(folder) if folder is not None else _state_folder()

    def mod(message: Message, context: Context, call_next: App) -> Message:
        found = find_frame(message.content) if message.has_content() else None
        if found is None:
            return call_next(message, context)
        started = time.perf_counter()
        session = ClientSession(root / f"{context.run_id}-{context.node_id}.npz")
        try:
            tensors = session.receive(found.frame)
        except ResyncNeeded as needed:
            return Message(RecordDict({ACKNOWLEDGEMENT: framed(needed.answer)}), reply_to=message)
        message.content = with_record(message.content, found.record, to_record(tensors))
        decode_ms = _ms_since(started)
        reply = call_next(message, context)
        if reply.has_content():  # an error is no answer: this client stays where it was
            _code_reply(reply, session, found.record, tensors, decode_ms)
            context.state[STATE] = ConfigRecord({"digest": (session.digest or b"").hex()})
        return reply

    return mod


def _code_reply(reply: Message, session: ClientSession, record: str, received: Tensors, decode_ms: float) -> None:
    started = time.perf_counter()
    content = reply.content
    trained = _model_record(content, record, received)
    if trained is None:
        content = with_record(content, ACKNOWLEDGEMENT, framed(session.reply()))
    else:
        content = with_record(
            content, trained, framed(session.reply(to_tensors(content.array_records[trained], received)))
        )
    times = ConfigRecord({"decode-ms": decode_ms, "encode-ms": _ms_since(started)})
    reply.content = with_record(content, TIMES, times)


def _model_record(content: RecordDict, record: str, received: Tensors) -> str | None:
    """The record that holds the trained model: the same tensors, preferably under the same name."""
    names = sorted(content.array_records, key=lambda name: name != record)
    return next((name for name in names if _fits(content.array_records[name], received)), None)


def _fits(record: ArrayRecord, received: Tensors) -> bool:
    return {name: tuple(array.shape) for name, array in record.items()} == {n: x.shape for n, x in received.items()}


def _state_folder() -> Path:
    if given := os.environ.get("PERBIT_STATE"):
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "perbit"


def _ms_since(started: float) -> float:
    return 1000 * (time.perf_counter() - started)
