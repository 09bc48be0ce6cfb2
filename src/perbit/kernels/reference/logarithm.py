"""A logarithm by sums and products alone, as in kernels/logarithm.hpp: the same bits on every machine."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_TWO_BY_LN2, _SQRT_HALF = 2.8853900817779268, math.sqrt(0.5)


def exact_log2(x: F64) -> F64:
    """Base 2, of positive finite numbers, to about 1e-12."""
    m, exponent = np.frexp(x)
    small = m < _SQRT_HALF
    m, exponent = np.where(small, m + m, m), exponent - small
    z = (m - 1.0) / (m + 1.0)
    w = z * z
    series = np.full_like(z, 1 / 13)
    for odd in (11, 9, 7, 5, 3, 1):
        series = series * w + 1 / odd
    found: F64 = exponent + (_TWO_BY_LN2 * z) * series
    return found
