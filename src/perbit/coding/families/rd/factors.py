"""The low-rank part: which components of a matrix are worth their bits, and their two vectors.

A component is σ·u·vᵀ. Its vectors are sent as σu and σv: an error in a value of either then is the same error in the product, for all
components, and one step serves them all. Where a residual follows that corrects errors anyway, vectors may be coarser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Piece
from perbit.coding.families.rd.trellis import SLOPE
from perbit.errors import DecodeError
from perbit.kernels.api import F32
from perbit.randomness import random_signs

MOST, FEW = 64, 16  # components that are looked for, and at first where looking is expensive
EXACT = 160  # rows or columns up to which the products of all pairs are made
_EXTRA, _PASSES = 8, 2
_FEWEST = 512  # values of a matrix for which a search pays
_SAMPLE_ROWS, _SAMPLE_COLUMNS = 64, 64
_RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_FIRST_TRIED = 2  # of them, and every third after it
_COARSEST, _COARSEST_TRIED = 40, 6  # as powers of √2
_HEAD = 24  # bits of a component beside its vectors
_SCALAR = 1.69  # a scalar quantizer with this step, in steps, has the error of the trellis
_LEAST_ERROR = SLOPE / (2 * math.log(2))  # a value's, where another bit costs as much as it saves
_GAIN = 0.2  # bits a value that the trellis saves against it
_LOSS = 0.08  # bits a value that the trellis stays above the bound

F64 = NDArray[np.float64]


def may_pay(rows: int, columns: int) -> bool:
    return min(rows, columns) >= 2 and rows * columns >= _FEWEST


def coarseness(index: int) -> float:
    """The step of the vectors, in steps of the residual."""
    if index > _COARSEST:
        raise DecodeError(f"rd: {index} is no coarseness")
    return float(2.0 ** (index / 2))


def short_floats(values: F32) -> NDArray[np.uint16]:
    """The upper halves of float32 values."""
    return (values.view(np.uint32) >> 16).astype("<u2")


def long_floats(data: Piece) -> F32:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def rounded_lengths(values: F64) -> F32:
    """As they will be decoded."""
    return long_floats(short_floats(values.astype(np.float32)).tobytes())


@cache
def normal(count: int) -> F32:
    """Always the same normally distributed values."""
    return np.random.default_rng(0).standard_normal(count, np.float32)


def best_partners(left: F32, matrix: F32) -> F32:
    """The right vectors with which these left ones come closest to the matrix."""
    gram = (left @ left.T).astype(np.float64)
    gram[np.diag_indices_from(gram)] += 1e-6 * max(float(gram.trace()) / len(gram), 1e-30)
    turned: F32 = np.linalg.inv(gram).astype(np.float32) @ (left @ matrix)
    return turned


@dataclass(frozen=True, eq=False)
class Choice:
    """Components that are worth it: unit vectors as rows, singular values in steps, how coarse the vectors may be."""

    left: F32
    sigma: F64
    coarse_index: int

    @property
    def rank(self) -> int:
        return len(self.sigma)

    @property
    def coarseness(self) -> float:
        return coarseness(self.coarse_index)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Some values of a matrix, to judge what the residual of so many rows costs."""

    rows: int
    values: F32
    left: F32
    right: F32
    residuals: dict[int, F32] = field(default_factory=dict)

    def noisy(self, rank: int, unit: float, noise: float) -> F32:
        """What the first components leave, in steps, with noise of this variance."""
        if rank not in self.residuals:
            self.residuals[rank] = (self.values - self.left[:rank].T @ self.right[:rank]).reshape(-1)
        residual = self.residuals[rank]
        return residual * np.float32(unit) + normal(residual.size) * np.float32(noise**0.5)


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """Indices all over a range."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _strongest(energies: F32, most: int) -> NDArray[np.int64]:
    """Indices of the largest energies, if they hold more than their share."""
    found = np.argsort(-energies, kind="stable")[:most]
    return found if energies[found].sum() > 4 * most / energies.size * energies.sum() else found[:0]


class Found:
    """The largest components of a matrix, and a sample of it to judge what a residual costs."""

    def __init__(self, matrix: F32, scale: float, most: int) -> None:
        self.rows, self.columns = matrix.shape
        self.scale = scale
        self.left, right, self.sigma = largest_components(matrix, min(most, *matrix.shape))
        rows, columns = _spread(self.rows, _SAMPLE_ROWS), _spread(self.columns, _SAMPLE_COLUMNS)
        strong = np.setdiff1d(_strongest(np.square(matrix).sum(axis=1), _SAMPLE_ROWS), rows)
        weak = self.rows - strong.size
        sampled = self.left * self.sigma[:, None].astype(np.float32)
        # Rows with most of the energy are looked at by themselves: in an embedding all others may be zero.
        self._samples = [
            _Sample(count, matrix[np.ix_(at, columns)], sampled[:, at], right[:, columns])
            for count, at in ((weak, rows), (strong.size, strong))
            if count
        ]

    def choice(self, step: float) -> Choice | None:
        """The components worth sending at this step: those with the least error plus rate, of some ranks and those beside the best of them."""
        unit = self.scale / step
        sigma = self.sigma * unit
        costs = {(0, 0): self._cost(0, 0, unit)}
        ranks = [rank for rank in _RANKS if rank <= len(sigma)]
        for rank in ranks[_FIRST_TRIED::3] + ranks[-1:]:
            costs |= self._costs(rank, sigma, unit)
        best = min(costs, key=lambda option: costs[option])
        at = ranks.index(best[0]) if best[0] else -1
        for rank in ranks[max(at - 1, 0) : at + 2]:
            costs |= self._costs(rank, sigma, unit)
        rank, index = min(costs, key=lambda option: costs[option])
        return Choice(self.left[:rank], sigma[:rank], index) if rank else None

    def _costs(self, rank: int, sigma: F64, unit: float) -> dict[tuple[int, int], float]:
        """Error plus rate with so many components: the coarser ones, as long as that helps."""
        costs: dict[tuple[int, int], float] = {}
        for index in range(0, _COARSEST_TRIED + 1, 2):
            costs[rank, index] = self._cost(rank, index, unit) + SLOPE * self._bits(sigma[:rank], index)
            if index and costs[rank, index] > costs[rank, index - 2]:
                break
        return costs

    def _cost(self, rank: int, index: int, unit: float) -> float:
        """Error plus rate of the residual, to which vectors so coarse have added noise."""
        noise = rank * (1 / self.rows + 1 / self.columns) * _LEAST_ERROR * 2.0**index
        costs = (sample.rows * _scalar_cost(sample.noisy(rank, unit, noise)) for sample in self._samples)
        return float(self.columns * sum(costs))

    def _bits(self, sigma: F64, index: int) -> float:
        """What the vectors of components cost, if their values are normally distributed."""
        excess = [sigma**2 / (n * _LEAST_ERROR * 2.0**index) for n in (self.rows, self.columns)]
        vectors = [
            n * (0.5 * np.log2(e[e > 1]) + _LOSS).sum() for n, e in zip((self.rows, self.columns), excess, strict=True)
        ]
        return float(sum(vectors)) + _HEAD * len(sigma)


def _scalar_cost(values: F32) -> float:
    """Error plus rate a value, by a scalar quantizer with a dead zone and an ideal code."""
    scaled = np.abs(values) * np.float32(1 / _SCALAR)
    levels = np.minimum(scaled + np.float32(0.36), 255.0).astype(np.uint8)
    error = float(np.square(scaled - levels).mean()) * _SCALAR**2
    counts = np.bincount(levels)
    p = counts[counts > 0] / levels.size
    bits = float(-(p @ np.log2(p)) + 1 - counts[0] / levels.size)
    return error + SLOPE * (bits - _GAIN * min(1.0, bits))


def largest_components(matrix: F32, most: int) -> tuple[F32, F32, F64]:
    """Left and right singular vectors as rows, and singular values, nearly."""
    if matrix.shape[0] > matrix.shape[1]:
        right, left, sigma = largest_components(matrix.T, most)
        return left, right, sigma
    basis = None if len(matrix) <= EXACT else _subspace(matrix, min(most + _EXTRA, len(matrix)))
    small = matrix if basis is None else basis.T @ matrix
    values, vectors = np.linalg.eigh(small @ small.T)
    order = np.argsort(-values)[:most]
    sigma = np.sqrt(np.maximum(values[order], 0)).astype(np.float64)
    told_from_nothing = sigma > 1e-3 * sigma[0]  # in single precision, squares below are noise
    order, sigma = order[told_from_nothing], sigma[told_from_nothing]
    turn: F32 = vectors[:, order].T
    right = (turn @ small) / sigma[:, None].astype(np.float32)
    return np.ascontiguousarray(turn if basis is None else turn @ basis.T), right, sigma


@lru_cache(maxsize=64)
def _signs(rows: int, columns: int) -> F32:
    return random_signs(columns, rows * columns).reshape(rows, columns)


def _subspace(matrix: F32, width: int) -> F32:
    """Orthogonal columns, nearly, that span nearly what the largest left singular vectors span."""
    basis = _orthogonal(matrix @ _signs(matrix.shape[1], width))
    for _ in range(_PASSES):
        basis = _orthogonal(matrix @ _orthogonal(matrix.T @ basis))
    return basis


def _orthogonal(columns: F32) -> F32:
    """By Cholesky's decomposition, twice: products of matrices are much faster than Householder's reflections."""
    for _ in range(2):
        gram = (columns.T @ columns).astype(np.float64)
        gram[np.diag_indices_from(gram)] += 1e-7 * max(float(gram.trace()), 1e-30)
        columns = columns @ np.linalg.inv(np.linalg.cholesky(gram)).T.astype(np.float32)
    return columns
