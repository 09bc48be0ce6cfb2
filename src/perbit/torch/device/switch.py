"""Which devices code with kernels of their own.

Those that torch calls cuda (NVIDIA from compute capability 8.0, AMD), if Triton 3.7 or newer is installed. PERBIT_DEVICE_KERNELS names
others: nothing for none, or kinds of devices with commas between them. `cpu` works under TRITON_INTERPRET=1 alone, slowly: it is for tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch

_OLDEST_GPU = (8, 0)  # what Triton supports of NVIDIA's
_OLDEST_TRITON = (3, 7)  # what kernels are tested with; torch may bring an older one that nobody asked for
_GIVEN = os.environ.get("PERBIT_DEVICE_KERNELS")
_kinds: set[str] = {"cuda"} if _GIVEN is None else {kind.strip() for kind in _GIVEN.split(",") if kind.strip()}


def serves(device: torch.device) -> bool:
    """Whether coders use kernels of this device."""
    return device.type in _kinds and _is_able(device)


@contextmanager
def using(*kinds: str) -> Iterator[None]:
    """Use the kernels of these kinds of devices, and of no others, within a with-block; of none at all without an argument."""
    global _kinds
    before, _kinds = _kinds, set(kinds)
    try:
        yield
    finally:
        _kinds = before


@cache
def _is_able(device: torch.device) -> bool:
    if find_spec("triton") is None or _triton() < _OLDEST_TRITON:
        return False
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "device kernels run on the cpu only with TRITON_INTERPRET=1, which must be set before they are first used"
        )
    if device.type == "cuda" and torch.version.hip is None:
        return torch.cuda.get_device_capability(device) >= _OLDEST_GPU
    return True


def _triton() -> tuple[int, ...]:
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2])
