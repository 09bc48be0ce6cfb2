"""Magnitude-weighted quantizers for the uniform density: the figure of centroids against M in the paper on them (docs/bibliography.md)."""

from __future__ import annotations

import math

import numpy as np

from perbit.gennorm.lloyd import quantizer
from perbit.gennorm.special import F64


class UniformSource:
    """The uniform density on [-√3, √3], seen from its positive half (perbit.gennorm.lloyd.Source)."""

    end = math.sqrt(3)

    def log_density(self, x: F64) -> F64:
        return np.full_like(x, -math.log(2 * self.end))

    def moments(self, p: float, edges: F64) -> F64:
        return np.diff(edges ** (p + 1)) / ((p + 1) * 2 * self.end)

    def compand(self, m: float, u: F64) -> F64:
        return np.asarray(self.end * u ** (1 / (m / 3 + 1)))


def design_uniform(m: float, bits: int) -> F64:
    """The 2^bits levels, ascending and symmetric, for the uniform density of unit variance under the weight |x|^m.

    >>> (design_uniform(0, 2) / 3**0.5).round(6)
    array([-0.75, -0.25,  0.25,  0.75])
    """
    return quantizer(UniformSource(), m, bits)
