"""The step at which tensors together have so many bits, or so little error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from perbit.coding.bits import Reader, Writer
from perbit.coding.families.rd import tensor
from perbit.coding.families.rd.tensor import Tensor
from perbit.coding.families.rd.trellis import SLOPE

STEPS = (1e-37, 1e37)  # the finest and the coarsest there are
_DIGITS = 4  # of a step: short in the frame
_TRIES, _MOST_TRIES = 12, 24  # as long as nothing is within the goal
_CLOSE, _LEAST_CLOSE = 0.98, 0.92  # of the goal: after few tries, after many
_AIM = math.log(0.99)
_FARTHEST = 3.0  # that one try goes, as a logarithm
_GUIDED, _LOOKS, _NEAR = 4, 6, 0.004  # tries that estimates guide, how many for each, and how near they come
_RANDOM_SIZE = 0.98  # of the goal: other random numbers may need more bytes
_LEFT_UNUSED = 0.7  # of the goal: below, what is not quite worth its bits is sent all the same ...
_LENIENT = SLOPE / 4  # ... at a quarter of the price


def step_for_bytes(tensors: Sequence[Tensor], goal: float, *, random: bool) -> float:
    """The finest step, nearly, at which tensors have at most so many bytes."""
    n, rms = _size_and_rms(tensors)

    def n_bytes(step: float) -> float:
        out = Writer()
        for each in tensors:
            each.write(step, out, 0 if random else None)
        return float(sum(map(len, out.pieces)))

    goal *= _RANDOM_SIZE if random else 1.0
    bits = 8 * max(goal, 1.0) / max(n, 1)
    start = rms * 2.0 ** (1.5 - bits) if bits > 1 else rms * bits**-0.5

    def found() -> float:
        return _search(n_bytes, lambda step: _estimates(tensors, step)[1], max(goal, 1.0), start, rising=False)

    step = found()
    if n_bytes(float(np.float32(step))) < _LEFT_UNUSED * goal and not random:
        for each in tensors:
            each.slope = _LENIENT
        step = found()
    return step


def step_for_error(tensors: Sequence[Tensor], db: float, *, random: bool) -> float:
    """The coarsest step, nearly, at which the squared error lies so many decibels from the energy; the expected one if rounding is random."""
    _, rms = _size_and_rms(tensors)

    def error(step: float) -> float:
        return sum(each.expected_error(step) if random else _error(each, step) for each in tensors)

    goal, start = 10 ** (db / 10) * sum(each.energy for each in tensors), 2 * rms * 10 ** (db / 20)
    return _search(error, lambda step: _estimates(tensors, step)[0], goal, start, rising=True)


def _estimates(tensors: Sequence[Tensor], step: float) -> tuple[float, float]:
    """About the squared error of all tensors, and their bytes."""
    found = [each.estimate(step) for each in tensors]
    return sum(error for error, _ in found), sum(n_bytes for _, n_bytes in found)


def _error(each: Tensor, step: float) -> float:
    out = Writer()
    each.write(step, out)
    decoded = tensor.read(Reader(out.join()), each.shape, step)
    return float(np.square(decoded - each.flat, dtype=np.float64).sum())


def _size_and_rms(tensors: Sequence[Tensor]) -> tuple[int, float]:
    n = sum(each.flat.size for each in tensors)
    return n, math.sqrt(sum(each.energy for each in tensors) / max(n, 1))


Measure = Callable[[float], float]


def _search(measure: Measure, estimate: Measure, goal: float, start: float, *, rising: bool) -> float:
    """The step whose measure is at most the goal, and close to it; measures rise or fall with the step.

    Estimates, which cost little, say where to begin and how to go on; where they mislead, secants on logarithms, within bounds once
    there are some. What is returned was measured, unless nothing was within the goal.
    """
    if not (start > 0 and goal > 0):
        return 1.0  # nothing but zeros
    tried = _Tried(2.0 if rising else -2.0)
    model = _Model(estimate, tried.slope)
    at = model.solve(math.log(goal) + _AIM, math.log(start))
    for turn in range(_MOST_TRIES):
        at = math.log(_allowed(at))
        found = measure(float(np.float32(math.exp(at))))
        tried.add(at, math.log(found) - math.log(goal) if found > 0 else -_FARTHEST)
        if tried.is_close(turn) or (turn >= _TRIES and tried.good):
            break
        guided = model.solve(model.value(at) + _AIM - tried.found, at) if turn < _GUIDED else None
        at = guided if guided is not None and tried.allows(guided) else tried.next(at, turn)
    return _allowed(tried.good[0] if tried.good else at)


class _Model:
    """Estimates, as logarithms: what they are worth is how they change from step to step."""

    def __init__(self, estimate: Measure, slope: float) -> None:
        self.estimate, self.slope, self.seen = estimate, slope, dict[float, float]()

    def value(self, at: float) -> float:
        if at not in self.seen:
            self.seen[at] = math.log(max(self.estimate(_allowed(at)), 1e-300))
        return self.seen[at]

    def solve(self, target: float, at: float) -> float:
        """The step at which the estimate is this, nearly."""
        slope = self.slope
        for _ in range(_LOOKS):
            miss = target - self.value(at)
            if abs(miss) < _NEAR:
                break
            away = max(-_FARTHEST, min(_FARTHEST, miss / slope))
            found = (self.value(at + away) - self.value(at)) / away
            at, slope = at + away, found if found / self.slope > 0.1 else slope
        return at


class _Tried:
    """Steps and what they measured, as logarithms relative to the goal: the best within it, the nearest beyond."""

    def __init__(self, slope: float) -> None:
        self.sign, self.slope = math.copysign(1, slope), slope
        self.good: tuple[float, float] | None = None
        self.bad: tuple[float, float] | None = None
        self.last: tuple[float, float] | None = None

    def add(self, at: float, found: float) -> None:
        if self.last and at != self.last[0]:
            slope = (found - self.last[1]) / (at - self.last[0])
            self.slope = slope if self.sign * slope > 0.05 else self.slope
        self.last = (at, found)
        # Of equals the later one counts, which is nearer to the other side: so the bounds close in.
        if found <= 0 and (self.good is None or found >= self.good[1]):
            self.good = self.last
        elif found > 0 and (self.bad is None or found <= self.bad[1]):
            self.bad = self.last

    @property
    def found(self) -> float:
        """What the last step measured."""
        assert self.last is not None
        return self.last[1]

    def allows(self, at: float) -> bool:
        """Whether a step is new, and on the right side of those tried."""
        assert self.last is not None
        if self.good and self.bad:
            low, high = sorted((self.good[0], self.bad[0]))
            return low + 1e-4 < at < high - 1e-4
        return (at - self.last[0]) * self.sign * -self.last[1] > 0 and abs(at - self.last[0]) > 1e-4

    def is_close(self, turn: int) -> bool:
        """Near the goal, where near enough is less after each try; or at a jump from step to step."""
        enough = max(_CLOSE ** max(1, turn), _LEAST_CLOSE)
        if self.good and self.good[1] >= math.log(enough):
            return True
        return bool(self.good and self.bad and abs(self.good[0] - self.bad[0]) < 2e-4)

    def next(self, at: float, turn: int) -> float:
        """Where to look next; every third time in the middle, which never fails."""
        if self.good and self.bad:
            (a, low), (b, high) = self.good, self.bad
            share = (_AIM - low) / (high - low) if turn % 3 else 0.5
            return a + (b - a) * min(0.9, max(0.1, share))
        assert self.last is not None
        away = (_AIM - self.last[1]) / self.slope
        away *= 1 if turn < 4 else 1.5
        return at + (
            max(-_FARTHEST, min(_FARTHEST, away)) if abs(away) > 1e-3 else math.copysign(0.02 * (turn + 1), away)
        )


def _allowed(log_step: float) -> float:
    """The nearest step of few digits."""
    return float(f"{min(max(math.exp(min(log_step, 700.0)), STEPS[0]), STEPS[1]):.{_DIGITS}g}")
