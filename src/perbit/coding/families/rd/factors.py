"""The low-rank part: which components of a matrix are worth their bits, and their two vectors.

A component is σ·u·vᵀ. Its vectors are sent as σu and σv: an error in a value of either then is the same error in the product, for all
components, and one step serves them all. Where a residual follows that corrects errors anyway, vectors may be coarser.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Piece
from perbit.coding.families.rd import judging
from perbit.errors import DecodeError
from perbit.kernels.api import F32
from perbit.randomness import random_signs

MOST, FEW = 64, 16  # components that are looked for, and at first where looking is expensive, then twice as many
EXACT = 256  # rows or columns up to which the products of all pairs are made
ALL = 2 * (FEW + 8)  # rows or columns up to which all components are found together
_EXTRA, _PASSES = 8, 2
_POWER = 3  # of the products of all pairs: in double precision, no component that counts is lost
_FEWEST = 512  # values of a matrix for which a search pays
_SAMPLE_ROWS, _SAMPLE_COLUMNS = 64, 64
_COARSEST = 40  # as a power of √2

F64 = NDArray[np.float64]


def may_pay(rows: int, columns: int) -> bool:
    return min(rows, columns) >= 2 and rows * columns >= _FEWEST


def coarseness(index: int) -> float:
    """The step of the vectors, in steps of the residual."""
    if index > _COARSEST:
        raise DecodeError(f"rd: {index} is no coarseness")
    return judging.coarse(index)


def short_floats(values: F32) -> NDArray[np.uint16]:
    """The upper halves of float32 values."""
    return (values.view(np.uint32) >> 16).astype("<u2")


def long_floats(data: Piece) -> F32:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def rounded_lengths(values: F64) -> F32:
    """As they will be decoded."""
    return long_floats(short_floats(values.astype(np.float32)).tobytes())


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
        return self.found.of.values

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


class Matrix:
    """What is found out once about a matrix of values up to about the largest; times the scale they are those that are meant."""

    def __init__(self, values: F32, scale: float, largest: float) -> None:
        self.values, self.scale, self.largest = values, scale, largest
        self.rows, self.columns = values.shape
        self.is_tall = self.rows > self.columns
        self.wide = values.T if self.is_tall else values
        energies = np.einsum("ij,ij->i", values, values)
        self.energy = float(energies.sum(dtype=np.float64))
        rows, columns = _spread(self.rows, _SAMPLE_ROWS), _spread(self.columns, _SAMPLE_COLUMNS)
        strong = _strongest(energies, _SAMPLE_ROWS)
        if strong.size:
            strong = np.setdiff1d(strong, rows)
        # Rows with most of the energy are looked at by themselves: in an embedding all others may be zero.
        self.strong, self.sampled_rows, self.sampled_columns = strong.size, np.concatenate([rows, strong]), columns
        self._basis = np.empty((len(self.wide), 0), np.float32)
        self.sample: F32 = values[self.sampled_rows[:, None], columns].reshape(-1)

    @cached_property
    def products(self) -> F32:
        """Of all pairs of the shorter vectors."""
        return self.wide @ self.wide.T

    def basis(self, width: int) -> F32:
        """Orthogonal columns, nearly, that span nearly what the largest vectors of the shorter side span; those found before are among them."""
        known = self._basis
        if known.shape[1] < width:
            more = self.wide @ _signs(self.wide.shape[1], width - known.shape[1])
            for _ in range(_PASSES):
                more = self.wide @ (self.wide.T @ _orthogonal(_without(known, more)))
            more = _without(known, _orthogonal(_without(known, more)))
            self._basis = _orthogonal(np.concatenate([known, more], axis=1))
        return self._basis


class Found:
    """The largest components of a matrix, at most so many, and a sample of it to judge what a residual costs."""

    def __init__(self, of: Matrix, most: int) -> None:
        self.of = of
        vectors, scaled, self.sigma, self.is_all = largest_components(of, min(most, of.rows, of.columns))
        lengths: F32 = self.sigma[:, None].astype(np.float32)
        self.left = scaled / lengths if of.is_tall else vectors
        self.right = vectors * lengths if of.is_tall else scaled
        sent = np.concatenate([self.left * lengths, self.right], axis=1)
        left, right = self.left[:, of.sampled_rows].reshape(-1), self.right[:, of.sampled_columns].reshape(-1)
        self.sample: judging.Sample = (sent.reshape(-1), self.sigma, of.sample, left, right)
        self._noise = judging.normal(max(sent.shape[1], of.sample.size))

    def choice(self, step: float) -> tuple[Choice | None, float, float]:
        """The components worth sending at this step, if any; about how large the squared error becomes, in steps, and how many bits there are."""
        of, unit = self.of, self.of.scale / step
        rank, index, error, bits = judging.choose_components(
            *self.sample, self._noise, of.strong, of.energy, unit, of.largest, of.rows, of.columns
        )
        return Choice(self, rank, index, unit) if rank else None, error, bits


def largest_components(of: Matrix, most: int) -> tuple[F32, F32, F64, bool]:
    """Unit vectors of the shorter side, those of the other side as long as components are large, singular values; whether these are all."""
    width = min(most + _EXTRA, len(of.wide))
    if len(of.wide) > EXACT:
        basis = of.basis(width)
        inside = basis.T @ of.wide
        values, turns = np.linalg.eigh(inside @ inside.T)
    else:
        basis, inside = None, of.wide
        values, turns = _largest_of(of.products, width)
    sigma = np.sqrt(np.maximum(values[::-1], 0)).astype(np.float64)
    # In single precision, squares below are noise.
    told_from_nothing = max(1, int(np.count_nonzero(sigma > 1e-3 * sigma[0])))
    count = min(told_from_nothing, most)
    is_all = told_from_nothing < len(sigma) or len(sigma) == len(of.wide)
    turned: F32 = np.ascontiguousarray(turns.T[::-1][:count], np.float32)
    vectors = turned if basis is None else turned @ basis.T
    return vectors, turned @ inside, sigma[:count], count == told_from_nothing and is_all


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


def _without(known: F32, columns: F32) -> F32:
    """What of columns lies outside of those known, which are orthogonal."""
    return columns - known @ (known.T @ columns) if known.size else columns


def _orthogonal(columns: F32) -> F32:
    """Nearly, by Cholesky's decomposition: products of matrices are much faster than Householder's reflections."""
    gram = (columns.T @ columns).astype(np.float64)
    gram[np.diag_indices_from(gram)] += 1e-7 * max(float(gram.trace()), 1e-30)
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:  # nearly parallel columns: sums in float32 may leave a value below zero
        reflected: F32 = np.linalg.qr(columns)[0]
        return reflected
    turned: F32 = columns @ np.linalg.inv(lower).T.astype(np.float32)
    return turned
