"""The matrix that pairs of vectors stand for, in numpy."""

from __future__ import annotations

import math

import numpy as np

from perbit.kernels.api import F32
from perbit.kernels.reference.checks import require, require_same_length
from perbit.kernels.reference.selection import axpy

MOST = float(np.finfo(np.float32).max)
PIECE = 1 << 20  # values that are summed at a time
LARGEST_TAPS = 256
DOT_LANES = 8  # of the sum of a product with a vector


def multiply_pairs(pairs: F32, rows: int, columns: int, out: F32) -> None:
    require(rows >= 1 and columns >= 1 and out.size == rows * columns, "the output must have rows times columns values")
    require(pairs.size % (rows + columns) == 0, "pairs must be whole")
    each = pairs.astype(np.float64).reshape(-1, rows + columns)
    step = max(1, PIECE // columns)
    for lo in range(0, rows, step):
        total = np.zeros((min(step, rows - lo), columns))
        for pair in each:
            total += pair[lo : min(lo + step, rows), None] * pair[rows:]
        out.reshape(rows, columns)[lo : lo + step] = np.clip(total, -MOST, MOST)


def axpy_pairs(out: F32, pairs: F32, rows: int, columns: int, weight: float) -> None:
    product = np.empty(out.size, np.float32)
    multiply_pairs(pairs, rows, columns, product)
    axpy(out, product, weight)


def there_and_back(matrix: F32, columns: int, start: F32, there: F32, back: F32) -> None:
    whole = columns >= 1 and matrix.size % columns == 0 and start.size % columns == 0
    require(whole, "rows and vectors must be whole")
    rows, count = matrix.size // columns, start.size // columns
    require(there.size == rows * count, "there must be a product for each row and vector")
    require_same_length(start, back)
    each = matrix.reshape(rows, columns)
    back.fill(0)
    with np.errstate(all="ignore"):
        for vector, products, sums in zip(
            start.reshape(count, columns), there.reshape(count, rows), back.reshape(count, columns), strict=True
        ):
            products[:] = _dots(each, vector)
            for row, product in zip(each, products, strict=True):
                sums += product * row


def _dots(matrix: F32, vector: F32) -> F32:
    lanes = np.zeros((len(matrix), DOT_LANES), np.float32)
    for lo in range(0, len(vector), DOT_LANES):
        part = matrix[:, lo : lo + DOT_LANES] * vector[lo : lo + DOT_LANES]
        lanes[:, : part.shape[1]] += part
    half = DOT_LANES
    while half := half // 2:
        lanes[:, :half] += lanes[:, half : 2 * half]
    return lanes[:, 0]


def add_pairs(left: F32, right: F32, rows: int, columns: int, out: F32) -> None:
    require(rows >= 1 and columns >= 1 and out.size == rows * columns, "the output must have rows times columns values")
    whole = left.size % rows == 0 and right.size % columns == 0 and left.size // rows == right.size // columns
    require(whole, "pairs must be whole")
    step = max(1, PIECE // columns)
    with np.errstate(over="ignore", invalid="ignore"):
        for lo in range(0, rows, step):
            total = np.zeros((min(step, rows - lo), columns), np.float32)
            for one, other in zip(left.reshape(-1, rows), right.reshape(-1, columns), strict=True):
                total += one[lo : lo + step, None] * other
            out.reshape(rows, columns)[lo : lo + step] += total


def split_planes(matrix: F32, values: F32, out: F32) -> None:
    taps = _taps(matrix, values, out)
    out.fill(0)
    if values.size:
        turned, columns = matrix.reshape(taps, taps).T.reshape(-1), values.reshape(-1, taps).T.reshape(-1)
        add_pairs(turned, columns, taps, values.size // taps, out)


def mix_planes(matrix: F32, planes: F32, out: F32) -> None:
    taps = _taps(matrix, planes, out)
    total = np.zeros((taps, planes.size // taps), np.float32)
    if planes.size:
        add_pairs(matrix, planes, taps, planes.size // taps, total.reshape(-1))
    out[:] = total.T.reshape(-1)


def _taps(matrix: F32, values: F32, out: F32) -> int:
    taps = math.isqrt(matrix.size)
    square = 1 <= taps <= LARGEST_TAPS and taps * taps == matrix.size
    require(square, "the matrix must be square, of at most 256 taps")
    require(values.size % taps == 0, "planes must be whole")
    require_same_length(values, out)
    return taps
