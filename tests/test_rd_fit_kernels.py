"""The kernels that judge and fit, and those that make rANS tables, choose the same on every back end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from numeric_backends import F32, fails_on_all, filled, normal, on_all
from perbit.kernels import K
from perbit.kernels.reference.logarithm import exact_log2


def fitted(x: F32, wide: bool, with_shifts: bool) -> Any:
    """Shifts, rates and the slope as one array, the same from every back end."""

    def call() -> Any:
        shifts, rates = np.empty(7, np.int8), np.empty(16, np.float32)
        slope = K.trellis_fit(x, wide, with_shifts, shifts, rates)
        return np.concatenate([shifts.astype(np.float64), rates.astype(np.float64), [slope]])

    return on_all(call)


def laplace(n: int, mean: float, seed: int = 0) -> F32:
    return np.random.default_rng(seed).laplace(0, mean, n).astype(np.float32)


# --- fitting a trellis -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("n", [0, 1, 7, 300, 1500, 8191, 8192, 8193, 30_000])
def test_every_back_end_fits_the_same_machine(n: int, wide: bool) -> None:
    for scale in (0.01, 0.6, 3.0, 100.0):
        fitted(laplace(n, scale, seed=n), wide, True)
    fitted(np.zeros(n, np.float32), wide, True)


def test_rates_are_the_logarithms_of_what_occurs() -> None:
    """A value of 4.5 steps each time is k = 2, or k = -2 and -3 in the other half: all else costs much more."""
    found = fitted(np.full(5000, 4.5, np.float32), False, True)
    rates = found[7:23]
    assert rates.argmin() - 8 in (2, -2, -3)
    assert rates.max() == pytest.approx(0.25 * math.log2(5001.6 / 0.1), rel=1e-6)


def test_the_cell_around_zero_moves_towards_zero_where_values_are_small() -> None:
    found = fitted(laplace(8000, 0.4), False, True)
    assert -40 <= found[3] <= -20  # of half a step, which is 32 units
    assert not fitted(laplace(8000, 0.4), False, False)[:7].any()


def test_far_values_make_rates_grow_slowly() -> None:
    assert fitted(laplace(8000, 50.0), False, True)[-1] < 0.1 * fitted(laplace(8000, 1.0), False, True)[-1]


def test_a_sample_comes_from_beginning_to_end() -> None:
    """Stretches of 1024 values: what lies between them does not count, what lies in the last one does."""
    x = laplace(100_000, 1.0)
    other, last = x.copy(), x.copy()
    other[3000:4000], last[-1024:] = 50, 50
    assert np.array_equal(fitted(x, False, True), fitted(other, False, True))
    assert not np.array_equal(fitted(x, False, True), fitted(last, False, True))


def test_what_cannot_be_filled() -> None:
    x, shifts, rates = normal(10), np.empty(7, np.int8), np.empty(16, np.float32)
    fails_on_all(lambda: K.trellis_fit(x, False, True, shifts[:6], rates), "shifts of k = -3 .. 3 and rates")
    fails_on_all(lambda: K.trellis_fit(x, False, True, shifts, rates[:15]), "shifts of k = -3 .. 3 and rates")


# --- a scalar quantizer's cost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 15, 4096, 5000])
def test_every_back_end_judges_alike(n: int) -> None:
    for scale, sigma in ((1.0, 0.0), (0.01, 0.3), (40.0, 2.0), (1e30, 0.0)):
        on_all(lambda scale=scale, sigma=sigma: K.scalar_cost(normal(n), normal(n, seed=3), scale, sigma, 0.36))


def test_error_and_bits_by_hand() -> None:
    """0.5 is cut to level 0, 1 and -1 are level 1 with a sign, 2.75 is level 3: counts 1, 2, 1 of 4."""
    x = np.array([0.5, 1, -1, 2.75], np.float32)
    error, bits = on_all(lambda: K.scalar_cost(x, np.zeros(4, np.float32), 1.0, 0.0, 0.36))
    assert error == 0.25 + 0.0625
    assert bits == pytest.approx(4 * 1.5 + 3)


def test_noise_is_added() -> None:
    x, noise = np.zeros(4, np.float32), np.array([1, 2, -3, 0], np.float32)
    assert on_all(lambda: K.scalar_cost(x, noise, 1.0, 2.0, 0.36)) == pytest.approx((0.0, 4 * 2 + 3))
    fails_on_all(lambda: K.scalar_cost(x, noise[:3], 1.0, 2.0, 0.36), "array lengths differ")


def test_the_logarithm_is_one() -> None:
    x = np.concatenate([2.0 ** np.arange(-60, 60), np.random.default_rng(0).uniform(1e-9, 1e9, 5000)])
    assert np.abs(exact_log2(x) - np.log2(x)).max() < 1e-11


# --- levels with a table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [0, 7])
def test_levels_are_looked_up(columns: int) -> None:
    levels = np.random.default_rng(0).geometric(0.4, 500).astype(np.uint32) - np.uint32(1)
    data, table = K.levels_encode(levels, columns, 300), normal(int(levels.max()) + 1)
    found = on_all(lambda: filled(np.float32, 500, lambda out: K.levels_decode_table(data, columns, 300, table, out)))
    assert np.array_equal(found, table[levels])
    out = np.empty(500, np.float32)
    fails_on_all(lambda: K.levels_decode_table(data, columns, 300, table[:-1], out), "a level outside the alphabet of")
    fails_on_all(lambda: K.levels_decode_table(data[:5], columns, 300, table, out), "ends early")
    fails_on_all(lambda: K.levels_decode_table(data, 1 << 33, 300, table, out), "too many columns")


# --- rANS tables -----------------------------------------------------------------------------------------------------


def counts_like(alphabet: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    size = rng.exponential(10 ** rng.uniform(-1, 5), alphabet) * np.exp(-np.arange(alphabet) * rng.uniform(0, 0.5))
    counts = np.floor(size).astype(np.uint64)
    counts[:2] += np.uint64(1)
    return counts


@pytest.mark.parametrize("alphabet", [2, 3, 16, 100, 256, 4096])
def test_every_back_end_makes_the_same_table(alphabet: int) -> None:
    for seed in range(12):
        counts = counts_like(alphabet, seed)
        freqs, bits, table, cost = on_all(lambda counts=counts: K.rans_table(counts))
        back = on_all(lambda table=table: K.rans_read_table(table + b"rest", alphabet))
        assert np.array_equal(back[0], freqs)
        assert back[1:] == (bits, len(table))
        if counts.sum() < 100_000:
            symbols = np.repeat(np.arange(alphabet), counts.astype(np.int64)).astype(np.uint16)
            assert 8 * len(K.rans_encode(symbols, freqs, bits)) == pytest.approx(cost, rel=0.02, abs=300)


def test_a_table_needs_two_symbols() -> None:
    for counts in ([], [0, 0], [0, 5, 0]):
        fails_on_all(lambda counts=counts: K.rans_table(np.array(counts, np.uint64)), "at least two symbols")


def test_garbage_is_the_same_table_everywhere_or_none() -> None:
    rng = np.random.default_rng(1)

    def outcome(data: bytes, alphabet: int) -> Any:
        try:
            freqs, bits, used = K.rans_read_table(data, alphabet)
        except ValueError as error:
            return str(error)
        return freqs.tolist(), bits, used

    sound = [on_all(lambda seed=seed: K.rans_table(counts_like(20, seed)))[2] for seed in range(10)]
    for _ in range(400):
        data = bytearray(sound[int(rng.integers(10))])
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        for changed in (bytes(data), bytes(data[: int(rng.integers(len(data)))]), rng.bytes(int(rng.integers(20)))):
            for alphabet in (20, 1, 300, 4096, 4097):
                on_all(lambda changed=changed, alphabet=alphabet: outcome(changed, alphabet))
