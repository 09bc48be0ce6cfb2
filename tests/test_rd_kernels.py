"""The kernels behind `rd` give the same bits on every back end; the trellis finds the cheapest path there is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from numeric_backends import F32, fails_on_all, filled, normal, on_all
from perbit import kernels
from perbit.kernels import K
from perbit.kernels.reference.bitcoder import BitEncoder
from perbit.kernels.reference.levels import LevelModel

SIZES = [0, 1, 5, 1023, 1024, 8191, 8192, 65535, 65536, 66000]
TYPES = {np.uint8: 128, np.uint16: 2048}  # symbol types, with the symbol of k = 0
NEAR = 16  # k = -8 .. 7 have shifts and rates of their own
NONE = np.zeros(NEAR, np.float32)
LARGEST_LEVEL, LARGEST_MEAN = 1 << 30, 1023 << 8


def encoded(x: F32, inverse: float, shifts: F32, rates: F32, slope: float, kind: Any) -> Any:
    """The symbols of x, the same ones from every back end."""
    return on_all(lambda: filled(kind, len(x), lambda out: K.trellis_encode(x, inverse, shifts, rates, slope, out)))


def machine(seed: int) -> tuple[F32, F32, float]:
    """Shifts, rates and a slope as a fit might find them."""
    rng = np.random.default_rng(seed)
    shifts = rng.uniform(-0.5, 0.5, NEAR).astype(np.float32)
    rates = np.abs(2.0 * np.arange(-8, 8) + 0.5) * rng.uniform(0, 0.5) + rng.uniform(0, 0.3, NEAR)
    return shifts, rates.astype(np.float32), float(np.float32(rng.uniform(0, 1)))


def next_state(state: int, parity: int) -> int:
    """The machine, as kernels/README.md has it: bits a, b, c from the lowest on."""
    a, b, c = state & 1, state >> 1 & 1, state >> 2
    return (a ^ b) + 2 * (parity ^ c) + 4 * a


def last_near(k: int) -> int:
    """The level of the same parity, of -8 .. 7, that lies closest."""
    return min(max(k, -8 + k % 2), 6 + k % 2)


def points(symbols: Any, zero: int, shifts: F32 = NONE) -> list[float]:
    """What a lane's symbols stand for, in steps."""
    found, state = [], 0
    for k in (int(symbol) - zero for symbol in symbols):
        found.append((2 * k + 0.5 + float(shifts[last_near(k) + 8])) * (-1 if state & 1 else 1))
        state = next_state(state, k & 1)
    return found


# --- the trellis -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("n", SIZES)
def test_every_back_end_takes_the_same_path(n: int, kind: Any) -> None:
    shifts, rates, slope = machine(n)
    if kind is np.uint8:
        encoded(normal(n) * np.float32(5), 0.7, shifts, rates, slope, kind)
    else:
        encoded(normal(n + 1, seed=2)[1:], -300.0, shifts, -rates, -slope, kind)


@pytest.mark.parametrize("inverse", [1.0, 1e30])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("n", [40, 1500, 9000, 66000])
def test_values_far_out_take_the_symbols_furthest_out(n: int, kind: Any, inverse: float) -> None:
    """Even those that are infinitely many steps."""
    zero = TYPES[kind]
    x = np.resize(np.array([1e30, -1e30, 3e38, -3e38, 5000, -5000, 1e-45, 0.0, -0.0], np.float32), n)
    symbols = encoded(x, inverse, NONE, NONE, 0.0, kind).astype(int)
    large, limit = np.abs(x) > 4999, 2 * zero - 4
    assert symbols.min() >= 1
    assert symbols.max() <= 2 * zero - 2
    assert np.all(np.abs(np.abs(2 * (symbols[large] - zero) + 0.5) - limit) <= 4)


def test_ties_fall_alike() -> None:
    """Values halfway between points, and rates that are all the same."""
    for n in (1000, 9000, 66000):
        x = np.resize(np.arange(-40, 41, dtype=np.float32) / 4, n)
        encoded(x, 1.0, NONE, np.ones(NEAR, np.float32), 0.0, np.uint8)


def cost(levels: Sequence[int], x: F32, shifts: F32, rates: F32, slope: float) -> float:
    """Squared error plus rate of levels, one lane."""
    found = points([128 + k for k in levels], 128, shifts)
    errors = (value - point for value, point in zip(x.tolist(), found, strict=True))
    return sum(e * e for e in errors) + sum(rate(k, rates, slope) for k in levels)


def rate(k: int, rates: F32, slope: float) -> float:
    """Levels of one parity beyond the near ones cost as much as the last of them, and the slope for each further one."""
    last = last_near(k)
    return float(rates[last + 8]) + slope * abs(k - last) / 2


@pytest.mark.parametrize(("n", "reach", "near"), [(1, 8, 5), (2, 8, 5), (4, 6, 4), (6, 2, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_no_sequence_of_levels_is_cheaper(n: int, reach: float, near: int, seed: int) -> None:
    """With one rate for all but zero, the nearest level of each parity and zero are all that can win.

    Args:
        n: values of one lane.
        reach: how far from zero they lie.
        near: levels -near .. near - 1 come into question.
        seed: of the values and rates.
    """
    rng = np.random.default_rng(seed)
    rates = np.full(NEAR, rng.uniform(0.3, 2), np.float32)
    rates[8] = 0.1
    x = rng.uniform(-reach, reach, n).astype(np.float32)
    least = min(cost(levels, x, NONE, rates, 0.0) for levels in product(range(-near, near), repeat=n))
    symbols = encoded(x, 1.0, NONE, rates, 0.0, np.uint8)
    assert cost([int(s) - 128 for s in symbols], x, NONE, rates, 0.0) == pytest.approx(least, abs=1e-4)


def offered(x: Sequence[float], state: int = 0) -> Iterator[list[int]]:
    """Every sequence of levels that are the nearest of their parity, before shifts, or zero."""
    if not x:
        yield []
        return
    value = -x[0] if state & 1 else x[0]
    for k in {0} | {2 * round((value - 2 * parity - 0.5) / 4) + parity for parity in (0, 1)}:
        yield from ([k, *following] for following in offered(x[1:], next_state(state, k & 1)))


@pytest.mark.parametrize("seed", range(12))
def test_no_sequence_of_the_levels_on_offer_is_cheaper(seed: int) -> None:
    """Any machine: shifts, rates and a slope at random, values beyond the near levels too."""
    shifts, rates, slope = machine(seed)
    x = np.random.default_rng(seed).uniform(-24, 24, 6).astype(np.float32)
    least = min(cost(levels, x, shifts, rates, slope) for levels in offered(x.tolist()))
    symbols = encoded(x, 1.0, shifts, rates, slope, np.uint8)
    found = cost([int(s) - 128 for s in symbols], x, shifts, rates, slope)
    assert found == pytest.approx(least, abs=1e-3)


def test_three_values_by_hand() -> None:
    """Points 2k + 1/2 from state 0; 2.5 is k = 1, odd, state 2; half 0 again: 0.5 is k = 0, state 1; now -0.5 is k = 0."""
    x = np.array([2.5, 0.5, -0.5], np.float32)
    assert encoded(x, 1.0, NONE, NONE, 0.0, np.uint8).tolist() == [129, 128, 128]
    assert [next_state(0, 1), next_state(2, 0)] == [2, 1]


def test_the_step_is_an_argument() -> None:
    x = normal(3000)
    half = encoded(x, 2.0, NONE, NONE, 0.0, np.uint8)
    assert np.array_equal(half, encoded(x * np.float32(2), 1.0, NONE, NONE, 0.0, np.uint8))


def test_rates_beyond_the_near_levels_grow_by_the_slope() -> None:
    """40 is k = 20 (j = 10, 7 beyond the last near one; error 1/2), k = 19 (j = 9, 6 beyond; error 3/2), or 0 (error 39.5)."""
    x = np.array([40], np.float32)
    for slope, k in ((0.0, 20), (1.9, 20), (2.1, 19), (259.0, 19), (260.0, 0)):
        assert encoded(x, 1.0, NONE, NONE, slope, np.uint8).tolist() == [128 + k]


def test_what_the_trellis_cannot_take() -> None:
    x, out = normal(10), np.empty(10, np.uint8)
    nan, inf = np.full(NEAR, np.nan, np.float32), np.full(NEAR, np.inf, np.float32)
    fails_on_all(lambda: K.trellis_encode(x, 1.0, NONE, NONE, 0.0, out[:9]), "array lengths differ")
    fails_on_all(lambda: K.trellis_encode(x, 1.0, NONE[:15], NONE, 0.0, out), "those of k = -8 .. 7")
    fails_on_all(lambda: K.trellis_encode(x, 1.0, NONE, NONE[:15], 0.0, out), "those of k = -8 .. 7")
    for bad in (math.nan, math.inf, 1e300):
        fails_on_all(lambda bad=bad: K.trellis_encode(x, bad, NONE, NONE, 0.0, out), "scalar argument is not finite")
        fails_on_all(lambda bad=bad: K.trellis_encode(x, 1.0, NONE, NONE, bad, out), "scalar argument is not finite")
    for bad in (nan, inf):
        fails_on_all(lambda bad=bad: K.trellis_encode(x, 1.0, bad, NONE, 0.0, out), "scalar argument is not finite")
        fails_on_all(lambda bad=bad: K.trellis_encode(x, 1.0, NONE, bad, 0.0, out), "scalar argument is not finite")


@pytest.mark.parametrize("n", SIZES)
def test_signs_follow_the_machine(n: int) -> None:
    values = np.abs(normal(n)) + np.float32(1)

    def call() -> Any:
        out = values.copy()
        K.trellis_signs(out)
        return out

    signed = on_all(call)
    lanes = 1 if n < 1024 else 4 if n < 8192 else 8 if n < 65536 else 32
    parities = values.view(np.uint32) & 1
    for lane in {0, lanes // 2, lanes - 1}:
        state, expected = 0, []
        for parity in parities[lane::lanes].tolist():
            expected.append(state & 1)
            state = next_state(state, parity)
        assert np.array_equal(np.signbit(signed[lane::lanes]), np.array(expected, bool))
    assert np.array_equal(np.abs(signed), values)


def test_signs_turn_whatever_sign_is_there() -> None:
    """Only the lowest bit is the parity: any bit pattern will do, NaN too."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 70_000, dtype=np.uint64).astype(np.uint32)

    def call() -> Any:
        out = bits.copy()
        K.trellis_signs(out.view(np.float32))
        return out

    assert np.array_equal(on_all(call) & 0x7FFFFFFF, bits & 0x7FFFFFFF)


# --- levels ----------------------------------------------------------------------------------------------------------


def geometric(n: int, mean: float, seed: int = 0) -> Any:
    return np.random.default_rng(seed).geometric(1 / (mean + 1), n).astype(np.uint32) - np.uint32(1)


def round_trip(levels: Any, columns: int, mean: int) -> bytes:
    """The stream, the same one from every back end, which all of them read back."""
    data: bytes = on_all(lambda: K.levels_encode(levels, columns, mean))
    back = on_all(lambda: filled(np.uint32, len(levels), lambda out: K.levels_decode(data, columns, mean, out)))
    assert np.array_equal(back, levels)
    return data


@pytest.mark.parametrize("columns", [0, 1, 2, 7, 300, 5000])
@pytest.mark.parametrize("mean", [0.01, 0.6, 5, 80])
def test_levels_come_back(mean: float, columns: int) -> None:
    round_trip(geometric(1200, mean), columns, min(int(256 * mean), LARGEST_MEAN))


@pytest.mark.parametrize("columns", [0, 3])
def test_levels_of_any_size_come_back(columns: int) -> None:
    powers = np.array([(1 << bit) + d for bit in range(5, 30) for d in (-1, 0, 1)] + [17, 18, 19, 20], np.uint32)
    levels = np.concatenate([powers, [LARGEST_LEVEL], np.zeros(40), powers[::-1], [LARGEST_LEVEL, 0]]).astype(np.uint32)
    for mean in (0, 1, 15, 16, 17, 5000, LARGEST_MEAN):
        round_trip(levels, columns, mean)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_levels_come_back(n: int) -> None:
    for level in (0, 1, 17, 18, 5000):
        for columns in (0, 1, 5):
            round_trip(np.full(n, level, np.uint32), columns, 0)
    assert round_trip(np.zeros(0, np.uint32), 0, 9) == b""


def test_levels_cost_hardly_more_than_their_entropy() -> None:
    n, mean = 4000, 1.0
    p = 1 / (mean + 1)
    entropy = n * (-math.log2(p) - (1 - p) / p * math.log2(1 - p))
    with kernels.using(kernels.available()[-1]):
        assert 8 * len(K.levels_encode(geometric(n, mean), 0, 256)) < 1.03 * entropy


def test_levels_that_change_from_column_to_column_are_cheaper_in_columns() -> None:
    sizes = np.resize([0.05, 0.05, 0.05, 8.0, 0.05, 20.0], 6000)
    levels = np.floor(np.random.default_rng(1).exponential(sizes)).astype(np.uint32)
    with kernels.using(kernels.available()[-1]):
        assert len(K.levels_encode(levels, 6, 300)) < 0.9 * len(K.levels_encode(levels, 0, 300))


def outcome(data: bytes, columns: int, mean: int, n: int) -> bytes | None:
    out = np.zeros(n, np.uint32)
    try:
        K.levels_decode(data, columns, mean, out)
    except ValueError:
        return None
    return out.tobytes()


@pytest.mark.parametrize("columns", [0, 7])
def test_streams_that_are_cut_or_too_long_are_refused_or_give_other_levels(columns: int) -> None:
    levels = geometric(200, 3.0)
    data = round_trip(levels, columns, 700)
    found = [on_all(lambda cut=cut: outcome(data[:cut], columns, 700, 200)) for cut in range(len(data))]
    assert levels.tobytes() not in found
    assert found.count(None) > 0.9 * len(data)
    out = np.empty(200, np.uint32)
    for more in (b"\0", b"\x01", b"\xff", b"\0\0\0\0", data):
        fails_on_all(
            lambda more=more: K.levels_decode(data + more, columns, 700, out), "the coded data has the wrong length"
        )
    fails_on_all(lambda: K.levels_decode(b"", columns, 700, out), "the coded data ends early")
    last = bytes([data[-1] ^ 1])
    fails_on_all(
        lambda: K.levels_decode(data[:-1] + last, columns, 700, out), "ends in a wrong byte|ends early|wrong length"
    )


@pytest.mark.parametrize("columns", [0, 5])
def test_changed_bytes_are_refused_or_give_other_levels(columns: int) -> None:
    levels = np.concatenate([geometric(40, 2.0), np.array([3000, 0, 70_000, 1], np.uint32)])
    data = round_trip(levels, columns, 500)
    decoded = 0
    for at in range(len(data)):
        for value in set(range(0, 256, 5)) - {data[at]}:
            damaged = data[:at] + bytes([value]) + data[at + 1 :]
            found = on_all(lambda damaged=damaged: outcome(damaged, columns, 500, len(levels)))
            assert found != levels.tobytes()
            decoded += found is not None
    assert decoded  # an arithmetic code has no redundancy: some of these are streams of other levels


def test_garbage_means_the_same_to_every_back_end() -> None:
    rng = np.random.default_rng(4)
    for size in (1, 3, 8, 40):
        for _ in range(30):
            data, n = rng.bytes(size), int(rng.integers(1, 60))
            on_all(lambda data=data, n=n: outcome(data, 0, LARGEST_MEAN, n))


@pytest.mark.parametrize("level", [LARGEST_LEVEL + 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, (1 << 32) + 16])
def test_levels_that_no_encoder_writes_are_refused(level: int) -> None:
    """Behind the eighteenth decision there is room for more than 32 bits: a level must not wrap around to a small one."""
    coder = BitEncoder()
    LevelModel(0, 0).code(coder, level)
    data, out = coder.finish(), np.empty(1, np.uint32)
    fails_on_all(lambda: K.levels_decode(data, 0, 0, out))


def test_what_levels_cannot_be() -> None:
    out = np.empty(3, np.uint32)
    fails_on_all(lambda: K.levels_encode(out, 1 << 33, 0), "there are too many columns")
    fails_on_all(lambda: K.levels_encode(out, 0, LARGEST_MEAN + 1), "the mean is too large")
    fails_on_all(lambda: K.levels_decode(b"", 1 << 33, 0, out), "there are too many columns")
    fails_on_all(lambda: K.levels_decode(b"", 0, LARGEST_MEAN + 1, out), "the mean is too large")
    fails_on_all(lambda: K.levels_encode(np.array([0, LARGEST_LEVEL + 1], np.uint32), 0, 0), "a level is too large")
