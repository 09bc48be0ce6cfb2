"""The client's side: a mod that turns frames into models before the app sees them, and models into frames afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from perbit.engines.flower import folders
from perbit.engines.flower.metrics import ms_since
from perbit.engines.flower.records import (
    ACKNOWLEDGEMENT,
    GOODBYE,
    RUN,
    STATE,
    TIMES,
    Found,
    find_frame,
    framed,
    to_record,
    to_tensors,
    with_record,
    without,
)
from perbit.errors import BudgetError, EncodeError, NonFiniteError
from perbit.printing import logger
from perbit.session import ClientSession, ResyncNeeded
from perbit.session.envelope import ask_for_resync
from perbit.session.model import Tensors
from perbit.session.seal import ANYBODY, Seal, Way

LOG = logger("flwr.perbit")  # beside Flower's own messages
App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]


def perbit_mod(folder: str | Path | None = None, key: bytes | None = None) -> Mod:
    """A mod for `ClientApp(mods=[perbit_mod(), ...])`; it must be the first, so that the others see models.

    The codecs and the protocol are the server's choice and come with its messages. Messages without a frame pass through.

    Args:
        folder: where the node keeps what it must remember, in a folder for each run (default: the environment variable
            PERBIT_STATE, or perbit in the user's state directory). Flower's own `context.state` may lose large values
            without a word. A run that ends deletes its folder.
        key: the secret of `CompressedGrid(key=...)`, if there is one.
    """
    root = folders.root_of(folder)
    Seal(key)  # refused here, where the app is made, if it is none

    def mod(message: Message, context: Context, call_next: App) -> Message:
        content = message.content if message.has_content() else RecordDict()
        own_folder = folders.path_of(root, _home_run(content, context), context.node_id)
        if GOODBYE in content.config_records:
            folders.remove(own_folder)
            context.state.pop(STATE, None)
            return Message(RecordDict(), reply_to=message)
        found = find_frame(content)
        return (
            call_next(message, context)
            if found is None
            else _framed(message, context, call_next, found, own_folder, key)
        )

    return mod


def _home_run(content: RecordDict, context: Context) -> int | str:
    """Under which name this node keeps its state: this run's number, or what the server's secret says, if it may go on in another run."""
    said = content.config_records[RUN].get("secret") if RUN in content.config_records else None
    return folders.name_of(said) or int(context.run_id)


def _framed(
    message: Message, context: Context, call_next: App, found: Found, own_folder: Path, key: bytes | None
) -> Message:
    """Let the app answer a model that came as a frame."""
    started = time.perf_counter()
    try:
        session = ClientSession(folders.make(own_folder), key=key)
        tensors = session.receive(found.frame, unsent=0.0 if _evaluates(message) else 1.0)
    except Exception as error:  # whatever is wrong with what this node remembers, a full frame replaces it
        own = error.answer if isinstance(error, ResyncNeeded) else b""
        answer = own or Seal(key).close(ask_for_resync(found.frame, repr(error)), Way.UP, ANYBODY)
        return Message(RecordDict({ACKNOWLEDGEMENT: framed(answer)}), reply_to=message)
    message.content = without(with_record(message.content, found.record, to_record(tensors)), RUN)
    decode_ms = ms_since(started)
    reply = call_next(message, context)
    if reply.has_content():  # an error is no answer: this client stays where it was
        started = time.perf_counter()
        content = _coded(reply.content, session, found.record, tensors)
        times = ConfigRecord({"decode-ms": decode_ms, "encode-ms": ms_since(started)})
        reply.content = with_record(content, TIMES, times)
        context.state[STATE] = ConfigRecord({"digest": (session.digest or b"").hex()})
    return reply


def _evaluates(message: Message) -> bool:
    """Whether the server's model is wanted as it is; to train, a client starts from where it would be had it sent everything."""
    return message.metadata.message_type.split(".")[0] == MessageType.EVALUATE


def _coded(content: RecordDict, session: ClientSession, record: str, received: Tensors) -> RecordDict:
    """The app's answer with a frame in place of its model, or with an acknowledgement beside what goes as it is."""
    trained = _model_record(content, record, received)
    if trained is not None:
        try:
            return with_record(content, trained, framed(session.reply(to_tensors(content.array_records[trained]))))
        except NonFiniteError:  # this client has diverged: the server is told, and leaves it out
            raise
        except (EncodeError, BudgetError) as error:
            LOG.warning("perbit: the reply goes as it is, uncompressed: %s", error)
    elif content.array_records:
        LOG.warning(
            "perbit: the reply goes as it is, uncompressed: %s hold other names or shapes than the model that came",
            " and ".join(map(repr, content.array_records)),
        )
    return with_record(content, ACKNOWLEDGEMENT, framed(session.reply()))


def _model_record(content: RecordDict, record: str, received: Tensors) -> str | None:
    """The record that holds the trained model or a part of it; if several might, the one named alike, or the largest."""
    fitting = [name for name, arrays in content.array_records.items() if _fits(arrays, received)]
    return min(fitting, key=lambda name: (name != record, -len(content.array_records[name])), default=None)


def _fits(record: ArrayRecord, received: Tensors) -> bool:
    shapes = {name: x.shape for name, x in received.items()}
    return len(record) > 0 and all(shapes.get(name) == tuple(array.shape) for name, array in record.items())
