"""Trellis-coded quantization in numpy, one value of every lane at a time (kernels/trellis.hpp says what it is)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import F32, Symbols
from perbit.kernels.reference.checks import finite32, require, require_same_length

STATES = 8
NEAR_LOW, NEAR_HIGH, NEAR_ZERO = np.float32(-4), np.float32(3), 4
NEVER = np.float32(1e30)
CALM_EVERY = 16

I64 = NDArray[np.int64]


def lanes_of(n: int) -> int:
    return 1 if n < 1024 else 4 if n < 8192 else 8 if n < 65536 else 32


def next_state(state: I64, parity: I64) -> I64:
    half, second, third = state & 1, state >> 1 & 1, state >> 2
    return (half ^ second) | (parity ^ third) << 1 | half << 2


def state_before(state: I64, choice: I64 | int) -> I64:
    half = state >> 2
    return half | (half ^ (state & 1)) << 1 | choice << 2


def parity_before(state: I64, choice: I64 | int) -> I64:
    return (state >> 1 & 1) ^ choice


_STATE: I64 = np.arange(STATES)
_BEFORE = [state_before(_STATE, choice) for choice in (0, 1)]
_PARITY = [parity_before(_STATE, choice) for choice in (0, 1)]


class Levels:
    """The best level of each parity for values in steps."""

    def __init__(self, shifts: F32, rates: F32, slope: float) -> None:
        require(len(shifts) == 16 and len(rates) == 16, "shifts and rates are those of k = -8 .. 7")
        require(bool(np.isfinite(shifts).all() and np.isfinite(rates).all()), "a scalar argument is not finite")
        self.shifts, self.rates, self.slope = shifts.reshape(8, 2).T, rates.reshape(8, 2).T, finite32(slope)

    def best(self, x: F32, parity: I64) -> tuple[F32, F32]:
        """j and its cost: the nearest level, or k = 0 where that is cheaper."""
        j, cost = self._nearest(x, parity)
        error = (x - np.float32(0.5)) - self.shifts[0, NEAR_ZERO]
        zero = error * error + self.rates[0, NEAR_ZERO]
        wins = (parity == 0) & (zero < cost)
        return np.where(wins, np.float32(0), j), np.where(wins, zero, cost)

    def _nearest(self, x: F32, parity: I64) -> tuple[F32, F32]:
        away = x - np.where(parity, np.float32(2.5), np.float32(0.5))
        j = np.rint(away * np.float32(0.25))
        near = np.minimum(np.maximum(j, NEAR_LOW), NEAR_HIGH)
        index = near.astype(np.int64) + NEAR_ZERO
        error = (away - np.float32(4) * j) - self.shifts[parity, index]
        return j, error * error + (self.rates[parity, index] + self.slope * np.abs(j - near))


def trellis_encode(x: F32, inverse: float, shifts: F32, rates: F32, slope: float, out: Symbols) -> None:
    require_same_length(x, out)
    zero = 128 if out.dtype == np.uint8 else 2048
    levels, limit = Levels(shifts, rates, slope), np.float32(2 * zero - 4)
    with np.errstate(over="ignore"):
        values = np.minimum(np.maximum(x * finite32(inverse), -limit), limit)
    costs, choices = _forward(values, levels)
    state = costs.argmin(axis=0)
    for step, part in reversed(list(enumerate(_steps(len(x))))):
        at = state[: part.stop - part.start]
        choice: I64 = choices[step][at, np.arange(len(at))].astype(np.int64)
        parity = parity_before(at, choice)
        j, _ = levels.best(np.where(at >> 2, -values[part], values[part]), parity)
        out[part] = 2 * j.astype(np.int64) + parity + zero
        state[: len(at)] = state_before(at, choice)


def _forward(values: F32, levels: Levels) -> tuple[F32, list[NDArray[np.bool_]]]:
    """What the best path to each state costs at the end, and the choices of all of them on the way."""
    costs = np.full((STATES, lanes_of(len(values))), NEVER, np.float32)
    costs[0] = 0
    choices = []
    for step, part in enumerate(_steps(len(values))):
        x = values[part]
        branch = np.stack([np.stack([levels.best(half, np.full(len(x), p))[1] for p in (0, 1)]) for half in (x, -x)])
        first, second = (costs[_BEFORE[choice], : len(x)] + branch[_STATE >> 2, _PARITY[choice]] for choice in (0, 1))
        choices.append(second < first)
        costs[:, : len(x)] = np.where(second < first, second, first)
        if step % CALM_EVERY == CALM_EVERY - 1:
            costs -= costs.min(axis=0)
    return costs, choices


def _steps(n: int) -> Iterator[slice]:
    lanes = lanes_of(n)
    return (slice(begin, min(n, begin + lanes)) for begin in range(0, n, lanes))


def trellis_signs(values: F32) -> None:
    bits = values.view(np.uint32)
    state: I64 = np.zeros(lanes_of(len(values)), np.int64)
    for part in _steps(len(values)):
        at = state[: part.stop - part.start]
        parity = bits[part].astype(np.int64) & 1
        bits[part] ^= at.astype(np.uint32) << np.uint32(31)
        at[:] = next_state(at, parity)
