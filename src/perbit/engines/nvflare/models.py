"""Models as NVFlare carries them (arrays or torch tensors by name, whole or as a difference) and as a session does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding.arrays import as_numpy
from perbit.errors import EncodeError
from perbit.session.model import Tensors


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
