"""Every way into a frame, with the rule they all obey: a DecodeError, or arrays of the shapes the header claims."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import perbit
from perbit.frame.header import Header
from perbit.frame.wire import read_header

Tensors = dict[str, np.ndarray[Any, Any]]
FLOATS = ("float32", "float64", "float16", "bfloat16")


class Outcome(NamedTuple):
    """How a frame was read: the error it was refused with, or the bytes of its values."""

    error: str | None
    values: bytes | None

    @property
    def agreed(self) -> tuple[bool, bytes | None]:
        """What must not depend on the back end (the words of an error may)."""
        return self.error is None, self.values


def read(frame: bytes, **limits: Any) -> Tensors:
    """The tensors of a frame of either kind."""
    is_message = len(frame) > 5 and frame[5] & 1
    return perbit.loads(frame, **limits) if is_message else {"": perbit.decode(frame, **limits)}


def probe(frame: bytes, max_values: int) -> Outcome:
    """Read a frame in every way. Anything but a DecodeError passes through; disagreement is an AssertionError."""
    try:
        header = read_header(frame, max_values)
    except perbit.DecodeError as error:
        for reader in (perbit.decode, perbit.loads, perbit.inspect):
            _expect_refusal(reader, frame, max_values=max_values)
        return Outcome(str(error), None)
    _expect_refusal(perbit.decode if header.is_message else perbit.loads, frame, max_values=max_values)
    try:
        tensors = read(frame, max_values=max_values)
    except perbit.DecodeError as error:
        _expect_refusal(perbit.inspect, frame, max_values=max_values)
        targets = _targets(header)
        if targets is not None:
            _expect_refusal(perbit.decode_add, frame, targets)
        return Outcome(str(error), None)
    assert [(name, x.dtype.name, x.shape) for name, x in tensors.items()] == [
        (entry.name, entry.dtype, entry.shape) for entry in header.entries
    ]
    assert perbit.inspect(frame, max_values=max_values)["n_bytes"] == len(frame)
    _check_addition(frame, header, tensors)
    return Outcome(None, b"".join(np.ascontiguousarray(x).tobytes() for x in tensors.values()))


def _expect_refusal(reader: Any, *arguments: Any, **limits: Any) -> None:
    try:
        reader(*arguments, **limits)
    except perbit.DecodeError:
        return
    raise AssertionError(f"{reader.__name__} accepted a frame that others refuse")


def _targets(header: Header) -> Any:
    """Zeros to add a frame to; None if numpy has no such shape."""
    try:
        zeros = {entry.name: np.zeros(entry.shape, np.float32) for entry in header.entries}
    except ValueError:
        return None
    return zeros if header.is_message else zeros[""]


def _check_addition(frame: bytes, header: Header, tensors: Tensors) -> None:
    out = _targets(header)
    with np.errstate(all="ignore"):
        expected = {name: np.zeros(x.shape, np.float32) + x.astype(np.float32) for name, x in tensors.items()}
    plain = all(x.dtype.name in FLOATS for x in tensors.values())
    narrow = all(x.dtype == np.float32 or np.isfinite(expected[name]).all() for name, x in tensors.items())
    if not (plain and narrow):
        _expect_refusal(perbit.decode_add, frame, out)
        return
    perbit.decode_add(frame, out)
    for name, x in (out if header.is_message else {"": out}).items():
        assert np.array_equal(x, expected[name], equal_nan=True), f"decode_add differs from decode in {name!r}"
