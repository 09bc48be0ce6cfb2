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
from perbit.kernels import K
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
_ROUNDING = 0.36  # what it adds before it cuts off: a dead zone around zero
_REACH = 250 * _SCALAR  # steps: its levels go to 255
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
    """Components that are worth it: unit vectors as rows, singular values in steps, how coarse the vectors may be; of which matrix, in what unit."""

    left: F32
    sigma: F64
    coarse_index: int
    matrix: F32
    unit: float

    @property
    def rank(self) -> int:
        return len(self.sigma)

    @property
    def coarseness(self) -> float:
        return coarseness(self.coarse_index)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Some values of a matrix, to judge what the residual of so many rows costs; the products of left and right are the components there."""

    rows: int
    values: F32
    left: F32
    right: F32
    residuals: dict[int, F32] = field(default_factory=dict)

    def judged(self, rank: int, unit: float, noise: float) -> tuple[float, float]:
        """Error and bits of what the first components leave, in steps, with noise of this variance: of all the rows, a column."""
        if rank not in self.residuals:
            self.residuals[rank] = (self.values - self.left[:, :rank] @ self.right[:rank]).reshape(-1)
        error, bits = judged(self.residuals[rank], unit, noise, unit)
        return self.rows * error, self.rows * bits


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
        self.scale, self._matrix = scale, matrix
        self._is_tall = self.rows > self.columns
        self._vectors, self.sigma = largest_components(matrix.T if self._is_tall else matrix, min(most, *matrix.shape))
        rows, columns = _spread(self.rows, _SAMPLE_ROWS), _spread(self.columns, _SAMPLE_COLUMNS)
        strong = np.setdiff1d(_strongest(np.einsum("ij,ij->i", matrix, matrix), _SAMPLE_ROWS), rows)
        # Rows with most of the energy are looked at by themselves: in an embedding all others may be zero.
        groups = [(self.rows - strong.size, rows), (strong.size, strong)]
        right = self._vectors[:, columns] if self._is_tall else self._vectors @ matrix[:, columns]
        self._samples = [
            _Sample(count, matrix[np.ix_(at, columns)], self._left_at(at), right) for count, at in groups if count
        ]

    def _left_at(self, rows: NDArray[np.int64]) -> F32:
        """What makes components of the sampled right vectors, in these rows."""
        return self._matrix[rows] @ self._vectors.T if self._is_tall else self._vectors[:, rows].T

    def left(self, rank: int) -> F32:
        """The first left vectors, as rows."""
        if not self._is_tall:
            return self._vectors[:rank]
        lengths: F32 = self.sigma[:rank, None].astype(np.float32)
        left: F32 = self._vectors[:rank] @ self._matrix.T
        return left / lengths

    def choice(self, step: float) -> Choice | None:
        """The components worth sending at this step: those with the least error plus rate, of some ranks and those beside the best of them."""
        unit = self.scale / step
        sigma = self.sigma * unit
        bits = self._bits(sigma)
        costs = {(0, 0): self._cost(0, 0, unit)}
        ranks = [rank for rank in _RANKS if rank <= len(sigma)]
        for rank in ranks[_FIRST_TRIED::3] + ranks[-1:]:
            costs |= self._costs(rank, bits, unit)
        best = min(costs, key=lambda option: costs[option])
        at = ranks.index(best[0]) if best[0] else -1
        for rank in ranks[max(at - 1, 0) : at + 2]:
            costs |= self._costs(rank, bits, unit)
        rank, index = min(costs, key=lambda option: costs[option])
        return Choice(self.left(rank), sigma[:rank], index, self._matrix, unit) if rank else None

    def _costs(self, rank: int, bits: F64, unit: float) -> dict[tuple[int, int], float]:
        """Error plus rate with so many components: the coarser ones, as long as that helps."""
        costs: dict[tuple[int, int], float] = {}
        for index in range(0, _COARSEST_TRIED + 1, 2):
            costs[rank, index] = self._cost(rank, index, unit) + SLOPE * float(bits[index, rank - 1])
            if index and costs[rank, index] > costs[rank, index - 2]:
                break
        return costs

    def estimate(self, choice: Choice | None, step: float) -> tuple[float, float]:
        """About how large the squared error becomes, in steps, and how many bits there are, with these components or none."""
        rank, index = (choice.rank, choice.coarse_index) if choice else (0, 0)
        error, bits = self._judged(rank, index, self.scale / step)
        return error, bits + (float(self._bits(choice.sigma)[index, -1]) if choice else 0.0)

    def _cost(self, rank: int, index: int, unit: float) -> float:
        """Error plus rate of the residual, to which vectors so coarse have added noise."""
        error, bits = self._judged(rank, index, unit)
        return error + SLOPE * bits

    def _judged(self, rank: int, index: int, unit: float) -> tuple[float, float]:
        noise = rank * (1 / self.rows + 1 / self.columns) * _LEAST_ERROR * 2.0**index
        found = [sample.judged(rank, unit, noise) for sample in self._samples]
        return self.columns * sum(error for error, _ in found), self.columns * sum(bits for _, bits in found)

    def _bits(self, sigma: F64) -> F64:
        """What the vectors of the first components cost, for each coarseness, if their values are normally distributed."""
        size = np.array([self.rows, self.columns], np.float64)[:, None, None]
        variance = sigma**2 / (size * _LEAST_ERROR * 2.0 ** np.arange(_COARSEST_TRIED + 1)[:, None])
        each = np.where(variance > 1, size * (0.5 * np.log2(np.maximum(variance, 1)) + _LOSS), 0).sum(axis=0)
        total: F64 = (each + _HEAD).cumsum(axis=1)
        return total


def judged(values: F32, unit: float, noise: float, reach: float) -> tuple[float, float]:
    """Error and bits a value, of values times a unit and with noise: those of a scalar quantizer with an ideal code, less what a trellis saves.

    It has few levels. Where values reach further, in steps, it is coarser: halving a fine step costs all but zeros another bit, and no more.
    """
    coarser = max(1.0, reach / _REACH)
    scale = 1 / (_SCALAR * coarser)
    error, bits = K.scalar_cost(values, normal(values.size), unit * scale, noise**0.5 * scale, _ROUNDING)
    if coarser > 1:
        bits += math.log2(coarser) * int(np.count_nonzero(values))
    error, bits = error / values.size * _SCALAR**2, bits / values.size
    return error, bits - _GAIN * min(1.0, bits)


def largest_components(matrix: F32, most: int) -> tuple[F32, F64]:
    """Left singular vectors as rows, and singular values, nearly, of a matrix with no more rows than columns."""
    basis = None if len(matrix) <= EXACT else _subspace(matrix, min(most + _EXTRA, len(matrix)))
    small = matrix if basis is None else basis.T @ matrix
    values, vectors = np.linalg.eigh(small @ small.T)
    sigma = np.sqrt(np.maximum(values[::-1][:most], 0)).astype(np.float64)
    told_from_nothing = int(np.count_nonzero(sigma > 1e-3 * sigma[0]))  # in single precision, squares below are noise
    turn: F32 = vectors.T[::-1][:told_from_nothing]
    return np.ascontiguousarray(turn if basis is None else turn @ basis.T), sigma[:told_from_nothing]


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
