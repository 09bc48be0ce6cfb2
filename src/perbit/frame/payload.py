"""The payload of a frame: one tensor after another as its codec writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.families.formats import Raw
from perbit.coding.values import size
from perbit.errors import DecodeError, NonFiniteError
from perbit.frame.header import Entry
from perbit.kernels import K
from perbit.kernels.api import F32


def write(array: NDArray[Any], entry: Entry, name: str | None, out: Writer, key: int) -> None:
    """Append one tensor; `name` is for errors."""
    stages = entry.codec.stages
    if isinstance(stages[0], Raw):  # raw keeps every dtype exactly
        arrays.check_finite(array, name)
        Rest(stages[1:]).encode_bytes(arrays.native_bytes(array), out)
        return
    finds_nonfinite = isinstance(stages[0], FloatCodec) and stages[0].finds_nonfinite
    try:
        entry.codec.rest.encode_floats(arrays.to_floats(array, name, scan=not finds_nonfinite), out, key)
    except NonFiniteError:
        raise arrays.nonfinite(array, name) from None


def read(src: Reader, entry: Entry) -> NDArray[Any]:
    """The next tensor."""
    stages = entry.codec.stages
    if isinstance(stages[0], Raw):
        data = Rest(stages[1:]).decode_bytes(src, size(entry.shape) * arrays.item_size(entry.dtype))
        return arrays.from_native(data, entry.dtype, entry.shape)
    return arrays.from_float32(entry.codec.rest.decode_floats(src, entry.shape), entry.dtype)


def add(src: Reader, entry: Entry, out: F32, weight: float) -> None:
    """Add the next tensor, times the weight, without a dense copy where its codec can."""
    if entry.dtype == "float32":
        entry.codec.rest.decode_add(src, entry.shape, out, weight)
    elif entry.dtype in arrays.FLOATS:
        K.axpy(out, arrays.to_floats(read(src, entry), entry.name).flat, weight)
    else:
        raise DecodeError(f"cannot add {entry.dtype} values to floats")


@contextmanager
def decoding() -> Iterator[None]:
    """Whatever a decoder stumbles over is the frame's fault, and said so; numbers may overflow without a warning."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DecodeError:
        raise
    except (ValueError, OverflowError, IndexError) as error:
        raise DecodeError(f"malformed frame: {error}") from error
