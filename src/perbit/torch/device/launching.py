"""Starting kernels, and the short ways between a device and the host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
LARGEST = (1 << 31) - (1 << 20)  # values of a tensor: kernels count with 32 bits
SIZE = 1024  # values that a program works on, where nothing speaks for another number

_interpreting = threading.RLock()


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the device of its first argument. Products and sums are never fused: hosts do not do it either."""
    if not programs:
        return
    first: torch.Tensor = arguments[0]
    with _interpreter() if IS_INTERPRETED else _current(first.device):
        kernel[(programs,)](*arguments, **constants, enable_fp_fusion=False)


def programs_for(n: int, size: int = SIZE) -> int:
    """How many programs work on n values."""
    return -(-n // size)


def on_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of an array of the host; unsigned numbers of more than 8 bits pass as signed ones."""
    signed = array.view(f"i{array.itemsize}") if array.dtype.kind == "u" and array.itemsize > 1 else array
    return torch.from_numpy(np.array(signed)).to(device)


def on_host(x: torch.Tensor) -> NDArray[Any]:
    """The values, complete."""
    found: NDArray[Any] = x.numpy(force=True)
    return found


@contextmanager
def _interpreter() -> Iterator[None]:
    """Triton's interpreter works for one thread at a time, and numpy warns where a device just overflows."""
    with _interpreting, np.errstate(all="ignore"):
        yield


def _current(device: torch.device) -> Any:
    """Threads begin with the first device, whatever the caller's was."""
    module = getattr(torch, device.type, None)
    return nullcontext() if module is None or not hasattr(module, "device") else module.device(device)
