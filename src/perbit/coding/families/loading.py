"""Where a uniform quantizer should clip: the loading factor with the least squared error for a GenNorm source."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from perbit.gennorm import BETAS, GenNorm

_GOLDEN = (5**0.5 - 1) / 2


def mse(load: float, beta: float, bits: int) -> float:
    """E(x - Q(x))² at unit variance for 2^bits equally spaced levels from -load to load.

    >>> round(mse(0.7979, 2.0, 1), 4)                                                     # one bit, the normal distribution: 1 - 2/π
    0.3634
    """
    half = 1 << (bits - 1)
    step = 2 * load / (2 * half - 1)
    levels = (np.arange(half) + 0.5) * step
    edges = np.append(np.arange(half) * step, np.inf)
    dist = GenNorm.with_std(beta)
    p, m1, m2 = (dist.cell_moments(k, edges) for k in range(3))
    return float(2 * np.sum(m2 - 2 * levels * m1 + levels**2 * p))


@lru_cache(maxsize=1024)
def optimal_loading(beta_index: int, bits: int) -> float:
    """The load with the least `mse` for a shape on the shipped grid, within 0.1 %, which leaves the error within 1e-6; only the encoder needs it.

    >>> round(optimal_loading(48, 2), 2)                                      # Max, 1960: 1.5 steps of 0.9957
    1.49
    """
    beta, lo, hi = float(BETAS[beta_index]), 0.1, 512.0
    while hi / lo > 1.002:  # the error falls, then rises: golden section, in the logarithm of the load
        ratio = (hi / lo) ** _GOLDEN
        left, right = hi / ratio, lo * ratio
        if mse(left, beta, bits) < mse(right, beta, bits):
            hi = right
        else:
            lo = left
    return math.sqrt(lo * hi)
