"""Models as NVFlare carries them (arrays or torch tensors by name, whole or as a difference) and as a session does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding.arrays import FLOATS, as_numpy, dtype_name
from perbit.errors import DecodeError, EncodeError
from perbit.protocols.protocol import LARGEST
from perbit.session.model import Tensors

MOST_STEPS = 2.0**53  # beyond that no float counts


def added(difference: Mapping[str, Any], received: Tensors) -> dict[str, Any]:
    """What a client trained, where it tells only the difference; it may leave out tensors."""
    if unknown := sorted(difference.keys() - received.keys()):
        raise EncodeError(f"the difference holds {unknown[0]!r}, which the model received does not")
    return {name: _flipped_or(np.add, received[name], as_numpy(x)) for name, x in difference.items()}


def subtracted(tensors: Tensors, base: Tensors) -> Tensors:
    """The difference again, for a workflow that expects it."""
    return {name: _flipped_or(np.subtract, x, base[name]) for name, x in tensors.items()}


def _flipped_or(operation: Any, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Of truth values, the difference says which are flipped; numpy cannot subtract them."""
    if np.shape(a) != np.shape(b):
        raise EncodeError("a difference must have the shape of the tensor received")
    result: NDArray[Any] = (np.logical_xor if a.dtype == b.dtype == np.bool_ else operation)(a, b)
    return result


def check_plain(tensors: Mapping[str, Any]) -> None:
    """Refuse what came as it is, so that no codec has looked at it, and would spoil a mean."""
    for name, value in tensors.items():
        try:
            x = as_numpy(value)
        except EncodeError:  # no tensor, but something that other filters and the workflow know of
            continue
        is_float = dtype_name(x.dtype) in FLOATS
        if is_float and x.size and not np.abs(x.astype(np.float64, copy=False)).max() <= LARGEST:
            raise DecodeError(f"tensor {name!r} is not finite, or too large to be summed up")


def check_steps(steps: Any) -> None:
    """Refuse a number of steps, by which NVFlare weighs results, that nothing can be divided by."""
    if steps is not None and not (isinstance(steps, int | float) and 0 < steps <= MOST_STEPS):
        raise DecodeError(f"the number of steps is {str(steps)[:50]}")


def plain_bytes(tensors: Mapping[str, Any]) -> int:
    """What the tensors take as they are."""
    return sum(getattr(x, "nbytes", 0) for x in tensors.values())


def are_torch(tensors: Mapping[str, Any]) -> bool:
    """Whether the engine exchanges torch tensors."""
    return any(hasattr(x, "detach") for x in tensors.values())


def for_users(tensors: Tensors, as_torch: bool) -> dict[str, Any]:
    """Copies that may be written to, of the kind the sender had."""
    return {name: _torch(x) if as_torch else np.array(x) for name, x in tensors.items()}


def _torch(x: NDArray[Any]) -> Any:
    import torch

    if x.dtype.name == "bfloat16":  # which torch does not take from numpy
        return torch.from_numpy(x.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.array(x))
