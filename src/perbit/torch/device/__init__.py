"""Kernels for tensors that lie on a GPU: coders on the host get symbols and positions instead of floats.

Frames are the same, byte for byte. Without Triton, and for codecs that have no kernels here, tensors are copied to the host as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from perbit.coding.afar import works_afar
from perbit.coding.codec import Pipeline
from perbit.torch.device.switch import serves, using

if TYPE_CHECKING:
    from perbit.torch.device.arrays import DeviceArray
    from perbit.torch.vectors import Vector

__all__ = ["afar", "serves", "target", "using", "vector_of"]


def afar(x: torch.Tensor, codec: Pipeline) -> DeviceArray | None:
    """The values of a tensor of floats to be encoded where they lie; None if the host has to do it."""
    if not (x.is_floating_point() and works_afar(codec) and serves(x.device)):
        return None
    from perbit.torch.device.arrays import DeviceArray  # imports triton
    from perbit.torch.device.launching import LARGEST

    if x.numel() > LARGEST:
        return None
    return DeviceArray(x.to(torch.float32).resolve_neg().contiguous(), x)


def target(x: torch.Tensor) -> DeviceArray | None:
    """The memory of a tensor, for frames to be added to where it lies; None if the host has to do it."""
    if x.dtype != torch.float32 or not x.is_contiguous() or x.is_neg() or not serves(x.device):
        return None
    from perbit.torch.device.arrays import DeviceArray
    from perbit.torch.device.launching import LARGEST

    return DeviceArray(x) if x.numel() <= LARGEST else None


def vector_of(x: torch.Tensor) -> Vector:
    """Float32 values with one dimension: an array of the host, or where they lie if coders have kernels there."""
    there = target(x)
    return x.numpy() if there is None else there
