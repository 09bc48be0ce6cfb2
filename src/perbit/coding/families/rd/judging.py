"""Which components of a matrix are worth their bits, judged by a sample of it: one call where kernels are compiled, and as it stands here otherwise.

Sums are made one after the other, so that both choose the same.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from perbit.coding.families.rd.trellis import SLOPE
from perbit.kernels import K, fused
from perbit.kernels.api import F32

F64 = NDArray[np.float64]

_RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_FIRST_TRIED = 2  # of them, and every third after it
_COARSEST_TRIED = 6  # as a power of √2; every second one is tried
_CORRECTED_FULLY = 1.3  # less the squares of a residual, in steps, that is by how much
_TOLD_FROM_ROUNDING = 1e-5  # of the energy: what components leave of less is the rounding of sums in single precision
_HEAD = 24  # bits of a component beside its values
_SCALAR = 1.69  # a scalar quantizer with this step, in steps, has the error of the trellis
_ROUNDING = 0.36  # what it adds before it cuts off: a dead zone around zero
_REACH = 250 * _SCALAR  # steps: its levels go to 255
_GAIN = 0.2  # bits a value that the trellis saves against it

Sample = tuple[F32, F64, F32, F32, F32]  # the first arguments of `choose_components`
Judgement = tuple[int, int, float, float]  # rank, coarseness, error in squares of the step, bits


@cache
def normal(count: int) -> F32:
    """Always the same normally distributed values."""
    return np.random.default_rng(0).standard_normal(count, np.float32)


def coarse(index: int) -> float:
    """The step of the vectors, in steps of the residual."""
    return float(2.0 ** (index / 2))


def judged(values: F32, unit: float, noise: float, reach: float) -> tuple[float, float]:
    """Error and bits a value, of values times a unit and with noise: those of a scalar quantizer with an ideal code, less what a trellis saves.

    It has few levels. Where values reach further, in steps, it is coarser: halving a fine step costs all but zeros another bit, and no more.
    """
    coarser = max(1.0, reach / _REACH)
    scale = 1 / (_SCALAR * coarser)
    error, bits = K.scalar_cost(values, normal(values.size), unit * scale, math.sqrt(noise) * scale, _ROUNDING)
    if coarser > 1:
        bits += math.log2(coarser) * int(np.count_nonzero(values))
    error, bits = error / values.size * (_SCALAR * _SCALAR), bits / values.size
    return error, bits - _GAIN * min(1.0, bits)


@fused
def choose_components(
    sent: F32, sigma: F64, values: F32, left: F32, right: F32, noise: F32, strong: int, energy: float, unit: float, largest: float,
    rows: int, columns: int
) -> Judgement:  # fmt: skip
    """The components with the least error plus rate: how many, how coarse their vectors, and about the error and the bits of everything.

    Of some ranks and those beside the best of them.

    Args:
        sent: the vectors of each component, `rows` and `columns` values, as they would be sent.
        sigma: singular values.
        values: a sample of the matrix, row after row.
        left: vectors at the rows of the sample, component after component.
        right: vectors at its columns.
        noise: normally distributed values, as many as any judgement needs.
        strong: how many rows of the sample, the last ones, stand for themselves; the others stand for all other rows.
        energy: squares of the whole matrix.
        unit: steps for each unit of the matrix.
        largest: about the largest magnitude in the matrix.
        rows: of the matrix.
        columns: of the matrix.
    """
    del noise  # that of `normal`
    judge = _Judge(sent, sigma, values, left, right, strong, energy, unit, largest, rows, columns)
    found = {(0, 0): judge.judged(0, 0)}

    def look(rank: int, index: int) -> None:
        if (rank, index) not in found:
            found[rank, index] = judge.judged(rank, index)

    def best() -> tuple[int, int]:
        return min(found, key=lambda choice: found[choice][0] + SLOPE * found[choice][1])

    ranks = [rank for rank in _RANKS if rank <= len(sigma)]
    for rank in ranks[_FIRST_TRIED::3] + ranks[-1:]:
        look(rank, 0)
    rank, index = best()
    while rank and index < _COARSEST_TRIED:  # coarser as long as that helps
        look(rank, index + 2)
        if best() != (rank, index + 2):
            break
        index += 2
    at = ranks.index(rank) if rank else -1
    for rank in ranks[max(at - 1, 0) : at + 2]:
        look(rank, index)
    rank, index = best()
    return rank, index, *found[rank, index]


class _Judge:
    """What components cost, and what a residual costs that has lost so many of them."""

    def __init__(
        self, sent: F32, sigma: F64, values: F32, left: F32, right: F32, strong: int, energy: float, unit: float, largest: float,
        rows: int, columns: int
    ) -> None:  # fmt: skip
        self.sent, self.sigma, self.unit = sent.reshape(len(sigma), -1), sigma, unit
        self.largest = largest
        self.rows, self.columns, self.energy = rows, columns, energy
        self.left, self.right = left.reshape(len(sigma), -1), right.reshape(len(sigma), -1)
        weak = self.left.shape[1] - strong
        counts = [(rows - strong, slice(0, weak)), (strong, slice(weak, weak + strong))]
        self.groups = [(count, at) for count, at in counts if at.stop > at.start]
        self.residuals = [values.reshape(self.left.shape[1], -1)]
        self.vector_costs: dict[tuple[int, int], tuple[float, float]] = {}

    def judged(self, rank: int, index: int) -> tuple[float, float]:
        """Error and bits: of the vectors, and of the residual, to which they have added noise."""
        vector_error = vector_bits = error = bits = 0.0
        for component in range(rank):
            found = self._vector_cost(component, index)
            vector_error, vector_bits = vector_error + found[0], vector_bits + found[1]
        noise = vector_error / (self.rows * self.columns)
        unit = self.unit * self._correction(rank)
        for count, at in self.groups:
            found = judged(self._residual(rank)[at].reshape(-1), unit, noise, unit * self.largest)
            error, bits = error + count * found[0], bits + count * found[1]
        return self.columns * error, self.columns * bits + vector_bits

    def _residual(self, rank: int) -> F32:
        """What the first components leave of the sample."""
        while len(self.residuals) <= rank:
            k = len(self.residuals) - 1
            self.residuals.append(self.residuals[k] - self.left[k][:, None] * self.right[k])
        return self.residuals[rank]

    def _vector_cost(self, component: int, index: int) -> tuple[float, float]:
        """Error and bits of the two vectors of a component."""
        if (component, index) not in self.vector_costs:
            step, size = coarse(index), self.rows + self.columns
            unit = self.unit / step
            error, bits = judged(self.sent[component], unit, 0.0, float(self.sigma[component]) * unit)
            self.vector_costs[component, index] = size * error * (step * step), size * bits + _HEAD
        return self.vector_costs[component, index]

    def _correction(self, rank: int) -> float:
        """What gives the residual of the sample the energy that the whole one is known to have, where most of it will be sent as zeros."""
        known, sampled = self.energy, 0.0
        for value in self.sigma[:rank]:
            known -= float(value) * float(value)
        for count, at in self.groups:
            part = self._residual(rank)[at].reshape(-1)
            sampled += count * K.moments(part)[2] / part.size
        sampled *= self.columns
        if not (known > _TOLD_FROM_ROUNDING * self.energy and sampled > 0):
            return 1.0
        weight = _CORRECTED_FULLY - known * (self.unit * self.unit) / (self.rows * self.columns)
        return math.pow(known / sampled, 0.5 * min(1.0, max(0.0, weight)))
