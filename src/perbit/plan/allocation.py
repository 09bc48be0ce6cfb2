"""What each tensor of a model gets when they share one budget."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perbit.coding.codec import Codec, stages_of
from perbit.coding.families.sparse import TopK
from perbit.errors import BudgetError
from perbit.frame import wire
from perbit.plan.template import Axis, Template, whole_numbers

_CANDIDATES = 24  # values of the free parameter that each tensor is measured with


class Allocation(Protocol):
    """One axis along which frames grow; at each of its values, the codec of every tensor."""

    axis: Axis

    def codecs(self, value: int | float) -> tuple[Codec, dict[str, Codec]]:
        """The codec of all tensors, and the exceptions by name."""
        ...


class OneForAll:
    """The same value of the free parameter for every tensor."""

    def __init__(self, template: Template, axis: Axis) -> None:
        self.template, self.axis = template, axis

    def codecs(self, value: int | float) -> tuple[Codec, dict[str, Codec]]:
        """One codec, no exceptions."""
        return self.template.fill(value), {}


class GlobalThreshold:
    """All values above one threshold, whichever tensor they are in.

    The last value kept then saves the same squared error in every tensor, so no exchange between tensors helps: of all
    choices of so many values this one has the least error.
    """

    def __init__(self, template: Template, tensors: Mapping[str, NDArray[Any]]) -> None:
        if template.parameter not in ("ratio", "k") or not isinstance(stages_of(template.fill(1))[0], TopK):
            raise BudgetError(
                f"per_tensor shares out the values that topk(?) keeps; {template.text!r} leaves no topk open"
            )
        if not tensors:
            raise BudgetError("there is no tensor to share a budget among")
        self.template = template
        self.magnitudes = {name: np.sort(np.abs(x.astype(np.float32)), axis=None) for name, x in tensors.items()}
        self.all = np.sort(np.concatenate(list(self.magnitudes.values())))
        self.axis = whole_numbers("values kept", len(self.magnitudes), self.all.size)

    def codecs(self, value: int | float) -> tuple[Codec, dict[str, Codec]]:
        """The codec of each tensor by name when `value` values are kept in all; every tensor keeps at least one."""
        level = self.all[self.all.size - int(value)]
        counts = {name: x.size - int(np.searchsorted(x, level)) for name, x in self.magnitudes.items()}
        return self.template.fill(1), {name: self.template.fill(max(1, count)) for name, count in counts.items()}


@dataclass(frozen=True)
class Step:
    """One tensor's change to its next better value: squared error saved per byte, and the value."""

    gain: float
    tensor: str
    value: int | float


class EqualGain:
    """Each tensor its own value; bytes go where the next ones save most squared error.

    Every tensor is coded with a range of values. From the smallest frames on, the best step of all tensors is taken
    again and again; the steps of a tensor run along the lower convex hull of its errors over its sizes, so they become
    less and less worthwhile, and one order of all steps serves every budget.
    """

    def __init__(self, template: Template, tensors: Mapping[str, NDArray[Any]], axis: Axis, seed: int | None) -> None:
        self.template = template
        values = _candidates(axis)
        hulls = {name: _hull([self._measure(x, v, seed) for v in values], name) for name, x in tensors.items()}
        self.first = {name: hull[0].value for name, hull in hulls.items()}
        self.steps = sorted((step for hull in hulls.values() for step in hull[1:]), key=lambda step: -step.gain)
        self.axis = whole_numbers("steps taken", 0, len(self.steps))

    def _measure(self, x: NDArray[Any], value: int | float, seed: int | None) -> tuple[int, float, int | float]:
        frame = wire.encode(x, self.template.fill(value), seed=seed)
        decoded = wire.decode(frame, expect_shape=x.shape)
        return len(frame), float(np.square(decoded - x, dtype=np.float64).sum()), value

    def codecs(self, value: int | float) -> tuple[Codec, dict[str, Codec]]:
        """The codec of each tensor after so many steps."""
        chosen = self.first | {step.tensor: step.value for step in self.steps[: int(value)]}
        return self.template.fill(next(iter(chosen.values()))), {
            name: self.template.fill(v) for name, v in chosen.items()
        }


def _candidates(axis: Axis) -> list[int | float]:
    """Values all over an axis, by equal factors: from 1 level to 2 an error falls as much as from 1000 to 2000.

    >>> _candidates(whole_numbers("levels", 1, 2000))[:8]
    [1, 2, 3, 4, 6, 8, 11, 15]
    """
    indices = range(axis.count)
    if axis.count <= _CANDIDATES:
        return [axis.value(index) for index in indices]
    wanted = np.geomspace(axis.value(0) or 1, axis.value(indices[-1]), _CANDIDATES).tolist()
    found = {bisect_left(indices, value, key=axis.value) for value in wanted}
    return [axis.value(index) for index in sorted({0, *found})]


def _hull(points: list[tuple[int, float, int | float]], name: str) -> list[Step]:
    """The smallest point, then the steps along the lower convex hull.

    >>> [(step.gain, step.value) for step in _hull([(1, 9.0, "a"), (2, 8.0, "b"), (3, 3.0, "c"), (5, 2.0, "d")], "w")]
    [(inf, 'a'), (3.0, 'c'), (0.5, 'd')]
    """
    size, error, value = min(points)
    steps = [Step(math.inf, name, value)]
    while better := [((error - e) / (s - size), s, e, v) for s, e, v in points if s > size and e < error]:
        gain, size, error, value = max(better)
        steps.append(Step(gain, name, value))
    return steps


def shared(template: Template, tensors: Mapping[str, NDArray[Any]], axis: Axis, seed: int | None) -> Allocation:
    """How tensors share one budget: `topk` by one threshold, all other codecs by equal gain."""
    if not tensors:
        raise BudgetError("there is no tensor to share a budget among")
    if template.parameter in ("ratio", "k") and isinstance(stages_of(template.fill(1))[0], TopK):
        return GlobalThreshold(template, tensors)
    return EqualGain(template, tensors, axis, seed)
