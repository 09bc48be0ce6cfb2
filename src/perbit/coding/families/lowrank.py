"""Low rank: a matrix becomes the few pairs of vectors whose products come closest to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.registry import register
from perbit.coding.values import Floats, Recall, Shape, size
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.randomness import random_signs

F64 = NDArray[np.float64]
MAX_RANK = 128
_MAX_SQUARED = 256  # rows that are decomposed exactly ...
_MAX_SQUARED_RANKS = 16  # ... if no search can begin where the last one ended; if it can, as many times the rank
_WIDTH = 4  # vectors that are searched together are this many or a multiple: matrix products like it
_PASSES = 4  # over a larger matrix and back: memories have flat spectra
_RECALLED_PASSES = 2  # as good, from where the last search ended
_NEWS = 0.1  # noise in what is recalled, as a share of it: so that what is new is found, wherever it lies
_ORDINARY = 2.0**30  # from its inverse to this, the squares of a matrix's values are sound in float32
_ALIKE = 1e-6  # of directions: what is left of one beside the others is rounding


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
            low, high, _ = values.range
            search = Search(values.recall, key)
            pairs = _largest_pairs(values.array.reshape(rows, columns), self.rank, max(-low, high), search)
            rest.encode_floats(Floats(pairs.reshape(-1)), out, key)

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        rows, columns = matrix_shape(shape)
        if self._passes(rows, columns):
            return rest.decode_floats(src, shape)
        pairs = rest.decode_floats(src, (self.rank * (rows + columns),))
        out = np.empty(size(shape), np.float32)
        K.multiply_pairs(pairs, rows, columns, out)
        return out.reshape(shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        rows, columns = matrix_shape(shape)
        if self._passes(rows, columns):
            super().decode_add(src, shape, rest, out, weight)
        else:
            K.axpy_pairs(out, rest.decode_floats(src, (self.rank * (rows + columns),)), rows, columns, weight)

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


@dataclass(frozen=True)
class Search:
    """Where a search begins, and where the next one of the same tensor may: error feedback brings back what this one finds and does not send."""

    recall: Recall | None
    key: int

    def exact_up_to(self, rank: int) -> int:
        """So many rows are decomposed sooner than searched."""
        return _MAX_SQUARED if self.recall is None else min(_MAX_SQUARED, _MAX_SQUARED_RANKS * rank)

    def start(self, width: int, columns: int) -> tuple[F32, int]:
        """As many vectors, and the passes to take from there."""
        found = None if self.recall is None else self.recall.found
        if found is None or found.shape != (width, columns):
            return random_signs(width, width * columns).reshape(width, columns), _PASSES
        noise = np.random.default_rng(self.key).standard_normal(found.shape, np.float32)
        return found + noise * np.float32(_NEWS / columns**0.5), _RECALLED_PASSES

    def end(self, found: F64) -> None:
        """These are not sent."""
        if self.recall is None:
            return
        length = np.linalg.norm(found, axis=1, keepdims=True)
        self.recall.found = (found / np.where(length > 0, length, 1)).astype(np.float32)


def _largest_pairs(matrix: F32, rank: int, largest: float, search: Search) -> F32:
    """`rank` rows, each a left and a right vector, both of root mean square √(σ/√(rows · columns)); `largest` is the largest magnitude."""
    rows, columns = matrix.shape
    if largest == 0:
        return np.zeros((rank, rows + columns), np.float32)
    unit = 1.0
    if min(rows, columns) <= search.exact_up_to(rank):
        unit = largest  # squares neither overflow nor vanish
        exact: F64 = matrix.astype(np.float64) / largest
        left, right = _factors(exact, rank) if rows <= columns else _factors(exact.T, rank)[::-1]
    else:
        if not 1 / _ORDINARY <= largest <= _ORDINARY:
            unit, matrix = largest, matrix / np.float32(largest)
        left, right = _nearly_factors(matrix, rank, search)
    left, right = (vectors * unit**0.5 * size**0.5 for vectors, size in ((left, rows), (right, columns)))
    pairs: F32 = (np.concatenate([left, right], axis=1) / (rows * columns) ** 0.25).astype(np.float32)
    return pairs


def _factors(matrix: F64, rank: int) -> tuple[F64, F64]:
    """The left and the right singular vectors of the `rank` largest singular values σ, each √σ long; no more rows than columns."""
    turn = np.linalg.eigh(matrix @ matrix.T)[1][:, : -rank - 1 : -1].T
    return _balanced(turn, turn @ matrix)


def _nearly_factors(matrix: F32, rank: int, search: Search) -> tuple[F64, F64]:
    """Nearly the same, in a few passes over the matrix: the best of all combinations of the vectors that these passes meet (block Krylov)."""
    width = min(-(-rank // _WIDTH) * _WIDTH, *matrix.shape)
    start, passes = search.start(width, matrix.shape[1])
    met = [_there_and_back(matrix, start)]
    while len(met) < passes:
        start = np.ascontiguousarray(np.linalg.qr(met[-1][1].T)[0].T)
        met.append(_there_and_back(matrix, start))
    left, right = (np.concatenate(vectors, dtype=np.float64) for vectors in zip(*met, strict=True))
    length = np.linalg.norm(left, axis=1)
    turn = np.diag(1 / np.where(length > 0, length, np.inf))
    energy, mixed = np.linalg.eigh(turn @ (left @ left.T) @ turn)
    sound = energy > _ALIKE * energy[-1]
    turn = (mixed[:, sound] / energy[sound] ** 0.5).T @ turn  # combinations of left vectors that are orthonormal
    order = np.linalg.eigh(turn @ (right @ right.T) @ turn.T)[1][:, ::-1]  # the longest first
    search.end(order[:, rank : rank + width].T @ turn @ right)
    turn = np.pad(order[:, :rank].T @ turn, ((0, max(0, rank - order.shape[1])), (0, 0)))
    return _balanced(turn @ left, turn @ right)


def _there_and_back(matrix: F32, start: F32) -> tuple[F32, F32]:
    """Products of the matrix with each row of `start`, and of the transposed matrix with these, by one pass over the matrix's memory."""
    there, back = np.empty((len(start), len(matrix)), np.float32), np.empty_like(start)
    K.there_and_back(matrix.reshape(-1), matrix.shape[1], start.reshape(-1), there.reshape(-1), back.reshape(-1))
    return there, back


def _balanced(left: F64, right: F64) -> tuple[F64, F64]:
    """Unit vectors, and vectors σ long, with the same products and both √σ long."""
    root = np.linalg.norm(right, axis=1, keepdims=True) ** 0.5
    return left * root, right / np.where(root > 0, root, 1)
