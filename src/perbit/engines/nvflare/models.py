"""Models as NVFlare carries them (arrays or torch tensors by name, whole or as a difference) and as a session does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.arrays import as_numpy
from perbit.errors import EncodeError
from perbit.session.model import Tensors


def in_order(tensors: Mapping[str, Any], received: Tensors) -> dict[str, Any]:
    """A result in the order of the model received, whose tensors it must have."""
    if {name: np.shape(x) for name, x in tensors.items()} != {name: x.shape for name, x in received.items()}:
        raise EncodeError("the result has other tensors, or other shapes, than the model received")
    return {name: tensors[name] for name in received}


def added(difference: Mapping[str, Any], received: Tensors) -> dict[str, Any]:
    """The whole model of a client that tells only its difference."""
    return {name: received[name] + as_numpy(x) for name, x in in_order(difference, received).items()}


def subtracted(tensors: Tensors, base: Tensors) -> Tensors:
    """The difference again, for a workflow that expects it."""
    return {name: x - base[name] for name, x in tensors.items()}


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
