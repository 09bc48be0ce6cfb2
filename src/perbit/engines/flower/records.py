"""Flower's records and perbit's frames: a frame travels as the only array of an ArrayRecord, under a type of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from perbit.session.model import Tensors

_FRAME_TYPE = "perbit.session"  # no other reader mistakes a frame for an array ...
_HINT = "; perbit_mod() must be the first of mods=[...]"  # ... and what it complains of is the type: hence the advice
FRAME = "frame"
ACKNOWLEDGEMENT = "perbit"  # the record of an answer that carries no model
TIMES = "perbit-times"
STATE = "perbit"
RUN = "perbit-run"  # the record with the secret of a server that may go on in another run
GOODBYE = "perbit-goodbye"  # the record of a message that says that the run is over


class Found(NamedTuple):
    """A frame in a message, and the record it stands for."""

    record: str
    frame: bytes


def framed(frame: bytes) -> ArrayRecord:
    """A record that carries a frame."""
    return ArrayRecord({FRAME: Array("uint8", (len(frame),), _FRAME_TYPE + _HINT, frame)})


def find_frame(content: RecordDict) -> Found | None:
    """The frame in a message, if there is one."""
    for name, record in content.array_records.items():
        if (array := record.get(FRAME)) is not None and array.stype.startswith(_FRAME_TYPE):
            return Found(name, array.data)
    return None


def with_record(content: RecordDict, name: str, record: Any) -> RecordDict:
    """A copy with one record replaced or added; strategies put one and the same content into all messages."""
    return RecordDict({**dict(content.items()), name: record})


def without(content: RecordDict, *names: str) -> RecordDict:
    """A copy without some records."""
    return RecordDict({name: record for name, record in content.items() if name not in names})


def to_tensors(record: ArrayRecord) -> Tensors:
    """The arrays of a record."""
    return {name: array.numpy() for name, array in record.items()}


def to_record(tensors: Tensors) -> ArrayRecord:
    """Arrays as any strategy and any client expects them."""
    return ArrayRecord({name: Array(np.asarray(x, order="C")) for name, x in tensors.items()})


def plain_bytes(content: RecordDict) -> int:
    """What the arrays of a message take without frames: their data, as Flower sends it."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())
