"""Sums of products, which make tensors of components and of frequencies: the same bits on every back end, in a stated order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from numeric_backends import fails_on_all, normal, on_all
from perbit.kernels import K


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 200), (200, 1), (3, 63), (3, 64), (3, 65), (17, 130), (100, 300), (2000, 7)]
)
@pytest.mark.parametrize("rank", [0, 1, 2, 5])
def test_pairs_are_added_alike(rows: int, columns: int, rank: int) -> None:
    left, right, start = normal(rank * rows, 1), normal(rank * columns, 2), normal(rows * columns, 3)

    def call() -> Any:
        out = start.copy()
        K.add_pairs(left, right, rows, columns, out)
        return out

    total = np.zeros((rows, columns), np.float32)  # in single precision, pair after pair, then to what is there
    for u, v in zip(left.reshape(rank, rows), right.reshape(rank, columns), strict=True):
        total += u[:, None] * v
    assert np.array_equal(on_all(call), (start.reshape(rows, columns) + total).reshape(-1))


def test_the_order_of_pairs_counts() -> None:
    """1e8 + 1 - 1e8 is 0 in single precision, and 1 the other way round."""

    def call(factors: list[float]) -> Any:
        out = np.zeros(4, np.float32)
        K.add_pairs(np.repeat(np.array(factors, np.float32), 2), np.ones(6, np.float32), 2, 2, out)
        return out

    assert on_all(lambda: call([1e8, 1, -1e8])).tolist() == [0] * 4
    assert on_all(lambda: call([1e8, -1e8, 1])).tolist() == [1] * 4


def test_sums_overflow_in_silence() -> None:
    """Infinity where single precision ends; who decodes a frame refuses it."""

    def call() -> Any:
        out = np.zeros(4, np.float32)
        K.add_pairs(np.array([1e30, 1], np.float32), np.array([1e30, 2], np.float32), 2, 2, out)
        return out

    assert on_all(call).tolist() == [math.inf, float(np.float32(2e30)), float(np.float32(1e30)), 2]


def test_what_pairs_cannot_be() -> None:
    out = np.zeros(12, np.float32)
    for rows, columns in ((0, 12), (12, 0), (3, 5), (5, 3), (1 << 63, 2)):
        fails_on_all(
            lambda rows=rows, columns=columns: K.add_pairs(out, out, rows, columns, out),
            "the output must have rows times columns values",
        )
    for n_left, n_right in ((3, 8), (6, 4), (4, 4), (3, 5), (0, 4)):
        left, right = normal(n_left), normal(n_right)
        fails_on_all(lambda left=left, right=right: K.add_pairs(left, right, 3, 4, out), "pairs must be whole")


@pytest.mark.parametrize(("taps", "n"), [(1, 5), (3, 1), (9, 64), (9, 200), (25, 130), (256, 3), (4, 0)])
def test_planes_are_mixed_in_one_order(taps: int, n: int) -> None:
    """As sums of pairs of a row of the matrix and a plane, turned round."""
    matrix, planes = normal(taps * taps), normal(taps * n, seed=1)

    def call() -> Any:
        out = np.full(taps * n, np.nan, np.float32)
        K.mix_planes(matrix, planes, out)
        return out

    total = np.zeros((taps, n), np.float32)
    for row, plane in zip(matrix.reshape(taps, taps), planes.reshape(taps, n), strict=True):
        total += row[:, None] * plane
    assert np.array_equal(on_all(call), total.T.reshape(-1))


@pytest.mark.parametrize(("taps", "n"), [(1, 5), (3, 1), (9, 64), (9, 200), (25, 130), (256, 3), (4, 0)])
def test_planes_are_split_in_one_order(taps: int, n: int) -> None:
    """As sums of pairs of a column of the matrix and a tap of all kernels."""
    matrix, values = normal(taps * taps), normal(taps * n, seed=1)

    def call() -> Any:
        out = np.full(taps * n, np.nan, np.float32)
        K.split_planes(matrix, values, out)
        return out

    total = np.zeros((taps, n), np.float32)
    for column, tap in zip(matrix.reshape(taps, taps).T, values.reshape(n, taps).T, strict=True):
        total += column[:, None] * tap
    assert np.array_equal(on_all(call), total.reshape(-1))


def test_what_planes_cannot_be() -> None:
    out = np.zeros(12, np.float32)
    fails_on_all(lambda: K.split_planes(normal(2), out, out), "the matrix must be square, of at most 256 taps")
    fails_on_all(lambda: K.split_planes(normal(25), out, out), "planes must be whole")
    fails_on_all(lambda: K.split_planes(normal(9), out, out[:9]), "array lengths differ")
    for size in (0, 2, 257 * 257):
        fails_on_all(
            lambda size=size: K.mix_planes(normal(size), out, out), "the matrix must be square, of at most 256 taps"
        )
    fails_on_all(lambda: K.mix_planes(normal(25), out, out), "planes must be whole")
    fails_on_all(lambda: K.mix_planes(normal(9), out, out[:9]), "array lengths differ")
