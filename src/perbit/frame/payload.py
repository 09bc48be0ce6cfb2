"""The payload of a frame: one tensor after another as its codec writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.afar import Afar, works_afar
from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.cost import Budget, Cost
from perbit.coding.families.formats import Raw
from perbit.coding.values import Echo, Known, size
from perbit.errors import DecodeError, EncodeError, LimitError, NonFiniteError, PerbitError
from perbit.frame.header import Entry
from perbit.kernels import K
from perbit.kernels.api import F32

_NOTHING = Known()
_TENSOR = Cost(1 << 18, 20_000)  # of any tensor, however small


def write(
    array: NDArray[Any] | Afar,
    entry: Entry,
    name: str | None,
    out: Writer,
    key: int,
    echo: Echo | None = None,
    known: Known = _NOTHING,
) -> None:
    """Append one tensor, as it is stored or as numpy has it, or from afar.

    `name` is for errors, `echo` for what will be decoded.
    """
    if isinstance(array, Afar) and not works_afar(entry.codec):
        array = array.on_host()
    if isinstance(array, Afar):
        _write_from_afar(array, entry, name, out, key)
    else:
        _write(array, entry, name, out, key, echo, known)


def _write_from_afar(array: Afar, entry: Entry, name: str | None, out: Writer, key: int) -> None:
    try:
        values, first = array.floats(), entry.codec.stages[0]
        if isinstance(first, FloatCodec) and not first.finds_nonfinite and values.range[2]:
            raise NonFiniteError("NaN or infinity")
        entry.codec.rest.encode_floats(values, out, key)
    except NonFiniteError:
        raise arrays.nonfinite(array.on_host(), name) from None


def _write(
    array: NDArray[Any],
    entry: Entry,
    name: str | None,
    out: Writer,
    key: int,
    echo: Echo | None,
    known: Known,
) -> None:
    stages = entry.codec.stages
    stored = arrays.stored(array)
    values = arrays.without_bf16(stored, entry.dtype)
    if isinstance(stages[0], Raw):  # raw keeps every dtype exactly
        arrays.check_finite(values, name)
        Rest(stages[1:]).encode_bytes(arrays.native_bytes(stored), out)
        return
    finds_nonfinite = isinstance(stages[0], FloatCodec) and stages[0].finds_nonfinite
    try:
        floats = arrays.to_floats(values, name, scan=not finds_nonfinite and known.range is None)
        floats.echo, floats.recall = echo, known.recall
        if known.range is not None:
            floats.range = known.range
        entry.codec.rest.encode_floats(floats, out, key)
    except NonFiniteError:
        raise arrays.nonfinite(values, name) from None
    except PerbitError:
        raise
    except (ValueError, ArithmeticError, LookupError, RuntimeError) as error:  # the values were changed meanwhile
        raise EncodeError(f"cannot encode {f'tensor {name!r}' if name else 'the array'}: {error}") from error


def result_bytes(entry: Entry) -> int:
    """The memory of a decoded tensor."""
    return size(entry.shape) * arrays.item_size(entry.dtype)


def check_results(entries: Sequence[Entry], budget: Budget) -> None:
    """Refuse a frame whose tensors, once they are decoded, are more than the budget allows."""
    budget.spend(Cost(sum(map(result_bytes, entries))))
    budget.keep(0)


def read(src: Reader, entry: Entry) -> NDArray[Any]:
    """The next tensor."""
    return arrays.as_dtype(read_stored(src, entry), entry.dtype)


def read_stored(src: Reader, entry: Entry) -> NDArray[Any]:
    """The next tensor, where bfloat16 values are 16-bit integers: this needs no package that numpy does without."""
    value = _read(src, entry)
    if src.budget is not None:
        src.budget.keep(value.nbytes)
    return value


def _read(src: Reader, entry: Entry) -> NDArray[Any]:
    stages, n_bytes = entry.codec.stages, result_bytes(entry)
    src.spend(_TENSOR)
    if isinstance(stages[0], Raw):
        src.spend(stages[0].cost((n_bytes // 4,)))
        return arrays.from_native(Rest(stages[1:]).decode_bytes(src, n_bytes), entry.dtype, entry.shape)
    if entry.dtype != "float32":
        src.spend(Cost(3 * n_bytes, n_bytes))
    return arrays.stored_float32(entry.codec.rest.decode_floats(src, entry.shape), entry.dtype)


def add(src: Reader, entry: Entry, out: F32 | Afar, weight: float) -> None:
    """Add the next tensor, times the weight, without a dense copy where its codec can."""
    if entry.dtype == "float32":
        src.spend(_TENSOR)
        if isinstance(out, Afar):
            out.add(src, entry.shape, entry.codec.rest, weight)
        else:
            entry.codec.rest.decode_add(src, entry.shape, out, weight)
        if src.budget is not None:
            src.budget.keep(0)
    elif entry.dtype in arrays.FLOATS:
        values = arrays.without_bf16(read_stored(src, entry), entry.dtype)
        floats = arrays.to_floats(values, entry.name).flat
        if isinstance(out, Afar):
            out.axpy(floats, weight)
        else:
            K.axpy(out, floats, weight)
    else:
        raise DecodeError(f"cannot add {entry.dtype} values to floats")


class decoding:  # noqa: N801 - reads as a word; a class, since a generator costs more than a small tensor
    """Whatever a decoder stumbles over is the frame's fault, and said so; numbers may overflow without a warning."""

    def __enter__(self) -> None:
        self._quiet = np.errstate(all="ignore")
        self._quiet.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._quiet.__exit__(kind, error, trace)
        if error is None or isinstance(error, DecodeError):
            return
        if isinstance(error, MemoryError):
            raise LimitError(
                "this machine has not the memory that the frame takes; pass a smaller max_memory to refuse it earlier"
            ) from error
        if isinstance(error, ValueError | OverflowError | IndexError):
            raise DecodeError(f"malformed frame: {error}") from error
