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
EXACT = 256  # rows or columns up to which the products of all pairs are made
ALL = 2 * (FEW + 8)  # rows or columns up to which all components are found together
_EXTRA, _PASSES = 8, 2
_POWER = 3  # of the products of all pairs: in double precision, no component that counts is lost
_FEWEST = 512  # values of a matrix for which a search pays
_SAMPLE_ROWS, _SAMPLE_COLUMNS = 64, 64
_CORRECTED_FULLY = 1.3  # less the squares of a residual, in steps, that is by how much
_RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_FIRST_TRIED = 2  # of them, and every third after it
_FIRST_COARSE = 0
_COARSEST, _COARSEST_TRIED = 40, 6  # as powers of √2
_HEAD = 24  # bits of a component beside its values
_SCALAR = 1.69  # a scalar quantizer with this step, in steps, has the error of the trellis
_ROUNDING = 0.36  # what it adds before it cuts off: a dead zone around zero
_REACH = 250 * _SCALAR  # steps: its levels go to 255
_GAIN = 0.2  # bits a value that the trellis saves against it

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
    """Components that are worth it: the first so many of those found, how coarse their vectors may be, and in what unit."""

    found: Found
    rank: int
    coarse_index: int
    unit: float

    @property
    def matrix(self) -> F32:
        return self.found.matrix

    @property
    def left(self) -> F32:
        """Unit vectors as rows."""
        return self.found.left[: self.rank]

    @property
    def right(self) -> F32:
        """Those of the other side, as long as the components are large."""
        return self.found.right[: self.rank]

    @property
    def sigma(self) -> F64:
        """Singular values in steps."""
        return self.found.sigma[: self.rank] * self.unit

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

    def residual(self, rank: int) -> F32:
        """What the first components leave."""
        if rank not in self.residuals:
            self.residuals[rank] = (self.values - self.left[:, :rank] @ self.right[:rank]).reshape(-1)
        return self.residuals[rank]

    def judged(self, rank: int, unit: float, noise: float) -> tuple[float, float]:
        """Error and bits of the residual, in steps, with noise of this variance: of all the rows, a column."""
        error, bits = judged(self.residual(rank), unit, noise, unit)
        return self.rows * error, self.rows * bits

    def energy(self, rank: int) -> float:
        """Squares of the residual: of all the rows, a column."""
        residual = self.residual(rank)
        return self.rows * float(residual @ residual) / residual.size


@lru_cache(maxsize=64)
def _spread(count: int, most: int) -> NDArray[np.int64]:
    """Indices all over a range."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _strongest(energies: F32, most: int) -> NDArray[np.int64]:
    """Indices of the largest energies, if they hold more than their share."""
    if float(energies.max()) * most <= 4 * most / energies.size * float(energies.sum()):
        return np.empty(0, np.int64)
    found = np.argsort(-energies, kind="stable")[:most]
    return found if energies[found].sum() > 4 * most / energies.size * energies.sum() else found[:0]


class Found:
    """The largest components of a matrix, and a sample of it to judge what a residual costs."""

    def __init__(self, matrix: F32, scale: float, most: int) -> None:
        self.rows, self.columns = matrix.shape
        self.scale, self.matrix = scale, matrix
        is_tall = self.rows > self.columns
        vectors, self.sigma = largest_components(matrix.T if is_tall else matrix, min(most, *matrix.shape))
        rows, columns = _spread(self.rows, _SAMPLE_ROWS), _spread(self.columns, _SAMPLE_COLUMNS)
        energies = np.einsum("ij,ij->i", matrix, matrix)
        self._energy, self._energies = float(energies.sum(dtype=np.float64)), dict[int, tuple[float, float]]()
        strong = _strongest(energies, _SAMPLE_ROWS)
        if strong.size:
            strong = np.setdiff1d(strong, rows)
        # Rows with most of the energy are looked at by themselves: in an embedding all others may be zero.
        groups = [(self.rows - strong.size, rows), (strong.size, strong)]
        lengths: F32 = self.sigma[:, None].astype(np.float32)
        scaled = vectors @ (matrix.T if is_tall else matrix)  # those of the other side
        self.left = scaled / lengths if is_tall else vectors
        self.right = vectors * lengths if is_tall else scaled
        self._sent = np.concatenate([self.left * lengths, self.right], axis=1)
        self._vector_costs: dict[tuple[int, int, float], tuple[float, float]] = {}
        self._samples = [
            _Sample(count, matrix[np.ix_(at, columns)], self.left[:, at].T, self.right[:, columns])
            for count, at in groups
            if count
        ]

    def choice(self, step: float) -> Choice | None:
        """The components worth sending at this step: those with the least error plus rate, of some ranks and those beside the best of them."""
        unit = self.scale / step
        costs = {(0, 0): self._cost(0, 0, unit)}

        def look(rank: int, index: int) -> None:
            if (rank, index) not in costs:
                costs[rank, index] = self._cost(rank, index, unit)

        ranks = [rank for rank in _RANKS if rank <= len(self.sigma)]
        for rank in ranks[_FIRST_TRIED::3] + ranks[-1:]:
            look(rank, _FIRST_COARSE)
        for index in range(0, _COARSEST_TRIED + 1, 2):  # of the best so far: coarser as long as that helps
            best = min(costs, key=costs.__getitem__)
            if best[0] and index != best[1]:
                look(best[0], index)
        best = min(costs, key=costs.__getitem__)
        at = ranks.index(best[0]) if best[0] else -1
        for rank in ranks[max(at - 1, 0) : at + 2]:
            look(rank, best[1])
        rank, index = min(costs, key=costs.__getitem__)
        return Choice(self, rank, index, unit) if rank else None

    def estimate(self, choice: Choice | None, step: float) -> tuple[float, float]:
        """About how large the squared error becomes, in steps, and how many bits there are, with these components or none."""
        if choice is None:
            return self._judged(0, 0, self.scale / step)
        return choice.found._judged(choice.rank, choice.coarse_index, choice.unit)

    def _cost(self, rank: int, index: int, unit: float) -> float:
        """Error plus rate with so many components whose vectors are so coarse."""
        error, bits = self._judged(rank, index, unit)
        return error + SLOPE * bits

    def _judged(self, rank: int, index: int, unit: float) -> tuple[float, float]:
        """Error and bits: of the vectors, and of the residual, to which they have added noise."""
        vectors = [self._vector_cost(k, index, unit) for k in range(rank)]
        noise = sum(error for error, _ in vectors) / (self.rows * self.columns)
        scaled = unit * self._correction(rank, unit)
        found = [sample.judged(rank, scaled, noise) for sample in self._samples]
        bits = self.columns * sum(bits for _, bits in found) + sum(bits for _, bits in vectors)
        return self.columns * sum(error for error, _ in found), bits

    def _vector_cost(self, component: int, index: int, unit: float) -> tuple[float, float]:
        """Error and bits of the two vectors of a component."""
        key = component, index, unit
        if key not in self._vector_costs:
            coarse = coarseness(index)
            error, bits = judged(
                self._sent[component], unit / coarse, 0.0, float(self.sigma[component]) * unit / coarse
            )
            size = self.rows + self.columns
            self._vector_costs[key] = size * error * coarse**2, size * bits + _HEAD
        return self._vector_costs[key]

    def _correction(self, rank: int, unit: float) -> float:
        """What gives the residual of the sample the energy that the whole one is known to have, where most of it will be sent as zeros."""
        if rank not in self._energies:
            known = self._energy - float(np.square(self.sigma[:rank]).sum())
            self._energies[rank] = known, self.columns * sum(sample.energy(rank) for sample in self._samples)
        known, sampled = self._energies[rank]
        if not known > 0 < sampled:
            return 1.0
        weight = _CORRECTED_FULLY - known * unit**2 / (self.rows * self.columns)
        return float((known / sampled) ** (0.5 * min(1.0, max(0.0, weight))))


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
    width = min(most + _EXTRA, len(matrix))
    if len(matrix) > EXACT:
        basis = _subspace(matrix, width)
        inside = basis.T @ matrix
        values, turn = np.linalg.eigh(inside @ inside.T)
        vectors: F32 | F64 = basis @ turn
    else:
        values, vectors = _largest_of(matrix @ matrix.T, width)
    sigma = np.sqrt(np.maximum(values[::-1][:most], 0)).astype(np.float64)
    told_from_nothing = int(np.count_nonzero(sigma > 1e-3 * sigma[0]))  # in single precision, squares below are noise
    return np.ascontiguousarray(vectors.T[::-1][:told_from_nothing], np.float32), sigma[:told_from_nothing]


def _largest_of(products: F32, width: int) -> tuple[F32 | F64, F32 | F64]:
    """The largest eigenvalues, ascending, and their vectors, nearly, of a symmetric matrix; all of them where that is as fast."""
    if len(products) < 2 * width:
        return np.linalg.eigh(products)
    exact = products.astype(np.float64)
    powers: F64 = _signs(len(exact), width).astype(np.float64)
    for _ in range(_POWER):
        powers = exact @ powers
    basis = np.linalg.qr(powers)[0]
    values, vectors = np.linalg.eigh(basis.T @ exact @ basis)
    return values, basis @ vectors


@lru_cache(maxsize=64)
def _signs(rows: int, columns: int) -> F32:
    return random_signs(columns, rows * columns).reshape(rows, columns)


def _subspace(matrix: F32, width: int) -> F32:
    """Orthogonal columns, nearly, that span nearly what the largest left singular vectors span."""
    basis = matrix @ _signs(matrix.shape[1], width)
    for _ in range(_PASSES):
        basis = matrix @ (matrix.T @ _orthogonal(basis))
    return _orthogonal(_orthogonal(basis))


def _orthogonal(columns: F32) -> F32:
    """Nearly, by Cholesky's decomposition: products of matrices are much faster than Householder's reflections."""
    gram = (columns.T @ columns).astype(np.float64)
    gram[np.diag_indices_from(gram)] += 1e-7 * max(float(gram.trace()), 1e-30)
    turned: F32 = columns @ np.linalg.inv(np.linalg.cholesky(gram)).T.astype(np.float32)
    return turned
