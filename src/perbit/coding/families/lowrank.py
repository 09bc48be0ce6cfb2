"""Low rank: a matrix becomes the few pairs of vectors whose products come closest to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.randomness import random_signs

F64 = NDArray[np.float64]
MAX_RANK = 128
_MAX_SQUARED = 256  # rows that are decomposed exactly
_EXTRA = 4  # more vectors than are kept: the last of them converge slowly
_PASSES = 4  # over the matrix and back, after the first: memories have flat spectra


@register
@dataclass(frozen=True)
class LowRank(FloatCodec):
    """A tensor of two or more dimensions, as a matrix with a row for each index of the first, is sent as `rank` pairs of vectors.

    The pairs are the largest singular values with their vectors, nearly, scaled so that both
    vectors of a pair have values of the same size; the next stage sees pair after pair. What a gradient repeats from sample to sample
    adds up to large singular values, noise does not. A tensor that would not become smaller is passed on as it is.

    Args:
        rank: pairs of vectors.
    """

    rank: int = 4

    name = "lowrank"
    wire_id = 56
    examples = ("lowrank", "lowrank(2) | uniform(4) | rans", "lowrank(8) | fp16")
    gives = "floats"

    def __post_init__(self) -> None:
        if type(self.rank) is not int or not 1 <= self.rank <= MAX_RANK:
            raise ValueError(f"rank must be 1 to {MAX_RANK}, got {self.rank!r}")

    def growth(self, n: int) -> float:
        return 1.0  # a projection; ω stays open, for an error in a vector is multiplied by the other vector of its pair

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        rows, columns = matrix_shape(values.array.shape)
        if self._passes(rows, columns):
            rest.encode_floats(values, out, key)
        else:
            pairs = _largest_pairs(values.array.reshape(rows, columns), self.rank)
            rest.encode_floats(Floats(pairs.reshape(-1)), out, key)

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        rows, columns = matrix_shape(shape)
        if self._passes(rows, columns):
            return rest.decode_floats(src, shape)
        pairs = rest.decode_floats(src, (self.rank * (rows + columns),))
        out = np.empty(size(shape), np.float32)
        K.multiply_pairs(pairs, rows, columns, out)
        return out.reshape(shape)

    def cost(self, shape: Shape) -> Cost:
        n = 0 if self._passes(*matrix_shape(shape)) else size(shape)
        return Cost(4 * n, n * (1 + self.rank // 4))

    def _passes(self, rows: int, columns: int) -> bool:
        return self.rank * (rows + columns) >= rows * columns


def matrix_shape(shape: Shape) -> tuple[int, int]:
    """Rows and columns of a tensor seen as a matrix; a vector is one row."""
    if len(shape) < 2:
        return 1, size(shape)
    return shape[0], size(shape[1:])


def _largest_pairs(matrix: F32, rank: int) -> F32:
    """`rank` rows, each a left and a right vector, both of root mean square √(σ/√(rows · columns))."""
    rows, columns = matrix.shape
    largest = float(np.abs(matrix).max(initial=0.0))
    if largest == 0:
        return np.zeros((rank, rows + columns), np.float32)
    exact: F64 = matrix.astype(np.float64) / largest  # squares neither overflow nor vanish
    if rows <= columns:
        left, right = _factors(exact, rank)
    else:
        right, left = _factors(exact.T, rank)
    left, right = (vectors * largest**0.5 * size**0.5 for vectors, size in ((left, rows), (right, columns)))
    pairs: F32 = (np.concatenate([left, right], axis=1) / (rows * columns) ** 0.25).astype(np.float32)
    return pairs


def _factors(matrix: F64, rank: int) -> tuple[F64, F64]:
    """The left and the right singular vectors of the `rank` largest singular values σ, nearly, each √σ long; no more rows than columns."""
    if len(matrix) > _MAX_SQUARED:
        basis = _subspace(matrix, rank + _EXTRA)
        left, right = _factors(basis.T @ matrix, rank)
        return left @ basis.T, right
    turn = np.linalg.eigh(matrix @ matrix.T)[1][:, : -rank - 1 : -1].T
    right = turn @ matrix
    root = np.linalg.norm(right, axis=1, keepdims=True) ** 0.5
    return turn * root, right / np.where(root > 0, root, 1)


def _subspace(matrix: F64, width: int) -> F64:
    """Orthogonal columns that span nearly what the `width` largest left singular vectors span."""
    basis = np.linalg.qr(matrix @ random_signs(width, matrix.shape[1] * width).reshape(-1, width))[0]
    for _ in range(_PASSES):
        basis = np.linalg.qr(matrix @ np.linalg.qr(matrix.T @ basis)[0])[0]
    return basis
