"""Kernels that reduce, select and add: three back ends agree bit for bit, and each result agrees with an independent oracle."""

# ruff: noqa: B023 - the functions made in loops are called before the loop goes on

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from numeric_backends import F32, SIZES, fails_on_all, inputs, normal, on_all, same_bits
from perbit.kernels import K

SMALL_SIZES = [0, 1, 7, 8, 9, 33, 65, 1000]

# --- reductions


def lane_sum(values: list[float]) -> float:
    """The sum of one block as the contract words it."""
    lanes = [0.0] * 16
    for i, v in enumerate(values):
        lanes[i % 16] += v
    half = 8
    while half:
        lanes = [lanes[j] + lanes[j + half] for j in range(half)]
        half //= 2
    return lanes[0]


def block_sum(values: list[float]) -> float:
    total = 0.0
    for begin in range(0, len(values), 65536):
        total += lane_sum(values[begin : begin + 65536])
    return total


@pytest.mark.parametrize("n", SIZES)
def test_scan_and_moments(n: int) -> None:
    for x in inputs(n):
        low, high, nonfinite = on_all(lambda: K.scan(x))
        assert nonfinite == 0
        if n:
            assert (low, high) == (x.min(), x.max())

        def with_hist(x: F32 = x) -> Any:
            hist = np.ones(2048, dtype=np.uint64)
            return (*K.moments(x, hist), hist)

        *values, hist = on_all(with_hist)
        assert same_bits(tuple(values), on_all(lambda: K.moments(x)))
        wide = x.astype(np.float64)
        assert values[0] == block_sum(wide.tolist())
        assert values[1] == block_sum(np.abs(wide).tolist())
        assert values[2] == block_sum((wide * wide).tolist())
        assert values[3] == (np.abs(x).max() if n else 0)
        assert values[4] == np.count_nonzero(x == 0)
        assert np.array_equal(hist - 1, np.bincount(x.view(np.uint32) >> 20 & 2047, minlength=2048))


def test_scan_counts_what_is_not_finite() -> None:
    x = normal(1000)
    x[[3, 500, 999]] = np.nan, np.inf, -np.inf
    assert on_all(lambda: K.scan(x))[2] == 3
    assert on_all(lambda: K.scan(np.array([-0.0, 0.0], dtype=np.float32))) == (0.0, 0.0, 0)


@pytest.mark.parametrize("bucket", [1, 5, 16, 17, 64, 512, 1000, 70_000, 1 << 40])
def test_bucket_norms(bucket: int) -> None:
    for n in (0, 1, 63, 1000, 70_001, 141_000):
        if n > 1000 * bucket:
            continue  # too many buckets for the plain loop below
        for x in inputs(n):
            squares = x.astype(np.float64) ** 2
            with np.errstate(over="ignore"):
                l2 = [np.float32(math.sqrt(block_sum(squares[i : i + bucket].tolist()))) for i in range(0, n, bucket)]
            assert on_all(lambda: K.bucket_norms(x, bucket, "l2")).tolist() == l2
            largest = on_all(lambda: K.bucket_norms(x, bucket, "max"))
            assert largest.tolist() == [np.abs(x[i : i + bucket]).max() for i in range(0, n, bucket)]


# --- selection


def plain_top_k(x: F32, k: int) -> Any:
    order = np.argsort(-np.abs(x), kind="stable")
    return np.sort(order[:k]).astype(np.uint32)


@pytest.mark.parametrize("n", SIZES)
def test_top_k_and_select_above(n: int) -> None:
    for x in inputs(n):
        for k in sorted({0, min(1, n), n // 1000, n // 100, n // 10, n // 2, max(0, n - 1), n}):
            assert same_bits(on_all(lambda: K.top_k(x, k)), plain_top_k(x, k))
        for threshold in (0.0, 1e-45, 0.5, 1.0, 2.0, 3e38, math.inf):
            got = on_all(lambda: K.select_above(x, threshold))
            assert same_bits(got, np.flatnonzero(np.abs(x) >= np.float32(threshold)).astype(np.uint32))


def adversarial(n: int) -> Iterator[F32]:
    ramp = np.arange(n, dtype=np.float32)
    yield np.zeros(n, dtype=np.float32)
    yield np.full(n, -2.5, dtype=np.float32)
    yield ramp
    yield ramp[::-1].copy()
    yield np.where(ramp % 2 == 0, ramp, -ramp).astype(np.float32)
    yield (ramp % 3).astype(np.float32)
    clustered = np.zeros(n, dtype=np.float32)  # all that matters in one place, where a sample hardly looks
    clustered[1000:1500] = 1 + ramp[:500]
    yield clustered
    organ_pipe = np.minimum(ramp, n - ramp)
    yield organ_pipe.astype(np.float32)
    yield np.where(ramp < n // 2, ramp * np.float32(1e-42), ramp).astype(np.float32)


def test_top_k_on_adversarial_inputs() -> None:
    n = 150_001
    for x in adversarial(n):
        for k in (1, 400, 501, n // 100, n // 3, n - 2):
            assert same_bits(on_all(lambda: K.top_k(x, k)), plain_top_k(x, k))


# --- additions


@pytest.mark.parametrize("n", SMALL_SIZES)
def test_additions(n: int) -> None:
    x, base = normal(n), normal(n + 40, seed=4)
    positions = np.random.default_rng(6).integers(0, n + 40, n).astype(np.uint32)  # some of them several times

    def scattered() -> F32:
        out = base.copy()
        K.scatter_add(out, positions, x, 0.3)
        return out

    expected = base.copy()
    for p, v in zip(positions, np.float32(0.3) * x, strict=True):
        expected[p] += v
    assert same_bits(on_all(scattered), expected)

    def added() -> F32:
        out = base[1 : n + 1].copy()
        K.axpy(out, x, -0.7)
        return out

    assert same_bits(on_all(added), base[1 : n + 1] + np.float32(-0.7) * x)
    if n:
        for bad in (n + 40, 2**31, 2**32 - 1):
            out, at = base.copy(), positions.copy()
            at[-1] = bad
            fails_on_all(lambda: K.scatter_add(out, at, x, 1.0), "outside the output")
            assert same_bits(out, base)
