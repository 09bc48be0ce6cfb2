"""What reductions and error memories do with values, wherever these lie: in an array of the host, or on a device that has kernels of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from perbit.coding.values import Range
from perbit.kernels import K
from perbit.kernels.api import F32

if TYPE_CHECKING:
    from perbit.torch.device.arrays import DeviceArray

    Vector: TypeAlias = F32 | DeviceArray


def scan(x: Vector) -> Range:
    """Smallest value, largest value, how many are NaN or infinite."""
    return K.scan(x) if isinstance(x, np.ndarray) else x.scan()


def norm(x: Vector) -> float:
    """The Euclidean norm."""
    moments = K.moments(x) if isinstance(x, np.ndarray) else x.floats().moments
    return float(np.sqrt(moments[2]))


def zeros(n: int, like: Vector | None) -> Vector:
    """So many zeros, where the other one lies."""
    return np.zeros(n, np.float32) if like is None or isinstance(like, np.ndarray) else like.zeros(n)


def placed(x: Vector, like: Vector | None) -> Vector:
    """The vector where the other one lies: itself, if it does."""
    return x if like is None or isinstance(like, np.ndarray) or not isinstance(x, np.ndarray) else like.placed(x)


def axpy(out: Vector, values: Vector, weight: float) -> None:
    """out += weight·values"""
    if isinstance(out, np.ndarray):
        assert isinstance(values, np.ndarray)
        K.axpy(out, values, weight)
    else:
        out.axpy(values, weight)


def feed(memory: Vector, g: Vector, gamma: float) -> None:
    """memory = g + γ·memory"""
    if isinstance(memory, np.ndarray):
        assert isinstance(g, np.ndarray)
        K.feedback_add(g, memory, gamma, memory)
    else:
        assert not isinstance(g, np.ndarray)
        memory.feed(g, gamma)


def scale(x: Vector, factor: float) -> None:
    """x *= factor"""
    values = x if isinstance(x, np.ndarray) else x.x
    values *= np.float32(factor).item()


def on_host(x: Vector) -> F32:
    """A copy on the host."""
    return x.copy() if isinstance(x, np.ndarray) else x.x.cpu().clone().numpy()


def joined(parts: Sequence[Vector]) -> torch.Tensor:
    """All parts one after the other."""
    return torch.cat([torch.from_numpy(part) if isinstance(part, np.ndarray) else part.x for part in parts])
