"""IEEE half precision in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import F32, Buffer
from perbit.kernels.reference.checks import pieces, require, require_same_length

LARGEST = 65504


def to_half(x: F32, out: NDArray[np.uint16]) -> None:
    require_same_length(x, out)
    for piece in pieces(len(x)):
        out[piece] = np.clip(x[piece], -LARGEST, LARGEST).astype(np.float16).view(np.uint16)


def from_half(data: Buffer, out: F32) -> None:
    require(len(memoryview(data)) == 2 * len(out), "half-precision data has the wrong length for this many values")
    half = np.frombuffer(data, np.float16)
    for piece in pieces(len(out)):
        require(bool(np.isfinite(half[piece]).all()), "a half-precision value is infinite or not a number")
        out[piece] = half[piece]
