"""The fast Walsh-Hadamard transform in numpy."""

from __future__ import annotations

import numpy as np

from perbit.kernels.api import F32
from perbit.kernels.reference.checks import require, require_same_length


def hadamard(x: F32, block: int, out: F32) -> None:
    require_same_length(x, out)
    fits = block > 0 and block & (block - 1) == 0 and len(x) % block == 0
    require(fits, "the length must be a multiple of the block, a power of two")
    out[:] = x
    h = 1
    with np.errstate(all="ignore"):
        while h < block:
            pairs = out.reshape(-1, 2, h)
            total = pairs[:, 0] + pairs[:, 1]
            pairs[:, 1] = pairs[:, 0] - pairs[:, 1]
            pairs[:, 0] = total
            h *= 2
