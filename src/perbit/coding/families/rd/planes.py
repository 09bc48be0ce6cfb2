"""Convolution kernels by frequency: neighbouring taps of a kernel change together, so a cosine transform gathers their energy.

A tensor (out, in, taps…) becomes as many planes (out, in) as there are taps, one for each frequency. A tensor without taps is one plane.
The transform is orthogonal: errors stay what they are.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perbit.coding.cost import Cost
from perbit.coding.values import Shape
from perbit.kernels import K
from perbit.kernels.api import F32

_LONGEST, _MOST_TAPS = 16, 256
_EXACT = 1 << 20  # entries of the transform are multiples of its inverse, the same on every machine
_LEAST_GAIN = 1.02  # of the arithmetic over the geometric mean of the planes' energies

F64 = NDArray[np.float64]


def taps_of(shape: Shape) -> Shape | None:
    """The sides of the kernels, if there are any to transform."""
    taps = shape[2:]
    if taps and 2 <= math.prod(taps) <= _MOST_TAPS and max(taps) <= _LONGEST:
        return taps
    return None


def by_frequency(values: F32, taps: Shape) -> F32:
    """Planes of a flat tensor, by sums in a defined order."""
    out = np.empty(values.size, np.float32)
    K.split_planes(transform(taps).reshape(-1), values, out)
    return out.reshape(math.prod(taps), -1)


def by_tap(planes: F32, taps: Shape) -> F32:
    """The flat tensor of planes, by sums in a defined order."""
    out = np.empty(planes.size, np.float32)
    K.mix_planes(transform(taps).reshape(-1), planes.reshape(-1), out)
    return out


def cost(taps: Shape, n: int) -> Cost:
    """What it takes to make the transform and to turn n values by it."""
    count = math.prod(taps)
    return Cost(12 * n + 32 * count**2, (4 + count // 4) * n + 8 * len(taps) * (count**2 + 1000))


def energies(planes: F32) -> tuple[F64, float]:
    """Of each plane, and the largest magnitude of all."""
    moments = [K.moments(plane) for plane in planes]
    return np.array([each[2] for each in moments]), max(each[3] for each in moments)


def is_worth_it(energies: F64) -> bool:
    """Whether frequencies differ in energy: one code for each then saves half the logarithm of the gain."""
    energies = energies / energies.max() + 1e-30
    return float(energies.mean() / np.exp(np.log(energies).mean())) > _LEAST_GAIN


@lru_cache(maxsize=32)  # a sender chooses the taps: none of its choices may stay for ever
def transform(taps: Shape) -> F32:
    """The cosine transform of kernels: a row for each frequency."""
    full: NDArray[np.floating] = np.ones((1, 1))
    for side in taps:
        full = np.kron(full, _cosines(side))
    matrix: F32 = (np.rint(full * _EXACT) / _EXACT).astype(np.float32)
    matrix.flags.writeable = False
    return matrix


def _cosines(side: int) -> F64:
    frequency, place = np.arange(side)[:, None], np.arange(side)[None, :]
    matrix: F64 = np.cos(np.pi * frequency * (2 * place + 1) / (2 * side)) * math.sqrt(2 / side)
    matrix[0] /= math.sqrt(2)
    return matrix
