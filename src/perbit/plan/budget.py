"""Meet a budget in real bytes: `fit_budget(tensors, "topk(?) | qsgd(15) | rans", n_bits=664_000)`.

Real frames have headers, position codes and entropy-coded values, so the sizes are measured and not counted by a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.codec import Codec, stages_of
from perbit.coding.families.rd import RateDistortion
from perbit.coding.families.rd.search import STEPS
from perbit.coding.spec import CodecLike
from perbit.errors import BudgetError
from perbit.frame import wire
from perbit.plan.allocation import Allocation, OneForAll, shared
from perbit.plan.message import dumps
from perbit.plan.plan import AUTO, Chooser, Plan, Rules, as_plan
from perbit.plan.rules import rule_for
from perbit.plan.template import Axis, Template, real_numbers

CHANNEL_HEAD = 42  # bytes kept free for the number and the digest of a channel's frame, and the envelope of a session
_NEIGHBOURS = (1, 2, 3, 5, 8, 13, 21, 34, 55)  # looked at where no value fits well
_AROUND = 1.05  # steps looked at, by this factor finer and coarser than the one `rd` found
_GOOD = 0.998  # filled so far, the search stops: the next step would gain less than it costs


@dataclass(frozen=True)
class Budgeted:
    """What `fit_budget` found: the frame, and the spec and plan that make it again (`dumps(tensors, plan, seed=seed)`)."""

    spec: str  # one spec for all tensors; with per_tensor the template
    plan: Plan | Codec
    value: int | float  # of the free parameter; with per_tensor a measure of how much all tensors got
    frame: bytes
    budget_bytes: int
    n_encodes: int
    seed: int | None

    @property
    def n_bytes(self) -> int:
        return len(self.frame)

    @property
    def n_bits(self) -> int:
        return 8 * len(self.frame)

    @property
    def filled(self) -> float:
        """The share of the budget in use."""
        return len(self.frame) / self.budget_bytes

    @property
    def plan_text(self) -> str:
        """Python to paste: a spec as text, or a Plan with its rules."""
        if not isinstance(self.plan, Plan):
            return repr(self.spec)
        rules = {rule: str(chosen) for rule, chosen in self.plan.rules}
        small = None if self.plan.small is None else str(self.plan.small)
        return f"Plan.of({str(self.plan.default)!r}, rules={rules}, small={small!r})"


def fit_budget(
    tensors: Any,
    spec: str,
    *,
    n_bits: int | None = None,
    n_bytes: int | None = None,
    per_tensor: bool = False,
    rules: Rules = (),
    small: CodecLike | None = AUTO,
    at_least: float = 0.99,
    seed: int | None = 0,
) -> Budgeted:
    """The value of the `?` in a spec for which the real frame of all tensors is at most the budget, and nearly as large.

    Args:
        tensors: an array, or a dict of arrays.
        spec: what large tensors get, with one `?`, e.g. "topk(?) | qsgd(15) | rans".
        n_bits, n_bytes: the budget of the whole frame, as one of the two.
        per_tensor: each tensor its own value: `topk(?)` keeps what is above one threshold over all tensors, other codecs get
            their bytes where they save most squared error.
        rules, small: what other tensors get, as in a Plan; their bytes are part of the budget.
        at_least: a frame smaller than this share of the budget is an error.
        seed: fixes every random choice.

    >>> import numpy as np, perbit
    >>> x = np.random.default_rng(0).laplace(size=100_000).astype(np.float32)
    >>> found = perbit.fit_budget(x, "topk(?) | qsgd(15) | rans", n_bits=80_000)
    >>> found.n_bytes <= 10_000, found.filled >= 0.99, perbit.decode(found.frame).shape
    (True, True, (100000,))
    """
    trial = _Trial(tensors, Plan.of(Budget.likely(spec), rules, small), seed)
    return _fit(trial, spec, _budget_bytes(n_bits, n_bytes), per_tensor, at_least)


def _fit(trial: _Trial, spec: str, budget: int, per_tensor: bool, at_least: float) -> Budgeted:
    template = Template(spec)
    found = _codec_near(trial, template, budget)
    near = found.step if found else None
    axis = real_numbers("step", near / _AROUND, near * _AROUND) if near else template.axis(*trial.extent())
    share: Allocation = shared(template, trial.coded(), axis, trial.seed) if per_tensor else OneForAll(template, axis)

    def plan(value: int | float) -> Plan | Codec:
        return trial.plan(*share.codecs(value))

    def n_bytes(value: int | float) -> int:
        return len(trial.frame(plan(value)))

    if near and not at_least and n_bytes(near) <= budget:
        value: int | float = near
    else:
        value = _search(share.axis, n_bytes, budget, at_least, spec)
    chosen = plan(value)
    text = spec if per_tensor else str(template.fill(value))
    return Budgeted(text, chosen, value, trial.frame(chosen), budget, trial.n_encodes, trial.seed)


def _codec_near(trial: _Trial, template: Template, budget: int) -> RateDistortion | None:
    """For `rd`, which finds its step faster by itself: with that step."""
    codec = template.fill(1.0) if template.parameter == "step" else None
    if not isinstance(codec, RateDistortion):
        return None
    beside = len(trial.frame(trial.plan(replace(codec, step=STEPS[1]), {})))  # nothing but what is sent beside
    floats = [arrays.to_floats(x, name).array for name, x in trial.coded().items()]
    return codec.within(floats, budget - beside)


@dataclass(frozen=True)
class Budget(Chooser):
    """For channels and protocols: every message takes as much of one budget as it can, and never more.

    The `?` of the spec is fitted anew to each message; a topk(?) keeps what is above one threshold over all tensors. Rules and
    small tensors are as in a Plan, and their bytes are part of the budget.

    >>> import numpy as np
    >>> from perbit.channels import Direct, ErrorFeedback
    >>> channel = ErrorFeedback(Direct(Budget.of("topk(?) | qsgd(15) | rans", n_bits=8000)), 1.0)
    >>> state, _ = channel.init({"w": (100, 100)})
    >>> sent = channel.send({"w": np.random.default_rng(0).laplace(size=(100, 100))}, state, seed=0)
    >>> 950 <= len(sent.frame) <= 1000
    True
    """

    template: str = ""
    n_bits: int = 0

    @classmethod
    def of(cls, spec: str, rules: Rules = (), small: CodecLike | None = AUTO, *, n_bits: int) -> Budget:
        """A budget from a spec with one `?`; see `Chooser` and `fit_budget` for the arguments."""
        if not isinstance(spec, str):
            raise BudgetError(f"a budget takes a spec with one '?', got {type(spec).__name__}")
        if _budget_bytes(n_bits, None) <= CHANNEL_HEAD:
            raise BudgetError(f"a message with a number and a digest needs more than {n_bits} bits")
        return cls(cls.likely(spec), rules, small, template=spec, n_bits=n_bits)  # type: ignore[arg-type]

    @staticmethod
    def likely(spec: str) -> Codec:
        """What stands for the open codec (its ω) before a message is seen."""
        template = Template(spec)
        axis = template.axis(1 << 20)
        return template.fill(axis.value(axis.count // 2))

    @property
    def needs_whole_model(self) -> bool:
        return True

    def codecs(self, tensors: Mapping[str, NDArray[Any]], seed: int | None = 0) -> dict[str, Codec]:
        """Those of the largest message within the budget."""
        trial, n_bytes = _Trial(tensors, self, seed), self.n_bits // 8 - CHANNEL_HEAD
        near = _codec_near(trial, Template(self.template), n_bytes)
        if near and len(trial.frame(plan := trial.plan(near, {}))) <= n_bytes:
            return as_plan(plan).codecs(tensors)  # it still knows what it found out about the tensors
        # A threshold of zero, where there are zeros only, would keep them all.
        share_out = stages_of(self.default)[0].name == "topk" and any(np.any(x) for x in trial.coded().values())
        found = _fit(trial, self.template, n_bytes, share_out, at_least=0.0)
        return as_plan(found.plan).codecs(tensors)


def _budget_bytes(n_bits: int | None, n_bytes: int | None) -> int:
    if (n_bits is None) == (n_bytes is None):
        raise BudgetError("give the budget as n_bits or as n_bytes")
    budget = n_bits // 8 if n_bits is not None else int(n_bytes or 0)
    if budget < 1:
        raise BudgetError(f"a budget is at least one byte, got {n_bits if n_bits is not None else n_bytes}")
    return budget


class _Trial:
    """The tensors of one fit, how they are framed, and the frames made so far."""

    def __init__(self, tensors: Any, exceptions: Chooser, seed: int | None) -> None:
        self.is_message = isinstance(tensors, Mapping)
        named = tensors if isinstance(tensors, Mapping) else {"": tensors}
        self.tensors = {name: arrays.as_numpy(x) for name, x in named.items()}
        self.exceptions, self.seed = exceptions, seed
        self.n_encodes = 0
        self._last: tuple[Plan | Codec, bytes] | None = None

    def plan(self, default: Codec, own: Mapping[str, Codec]) -> Plan | Codec:
        """The default codec, tensors with one of their own, and the exceptions of the budget."""
        if not self.is_message:
            return own.get("", default)
        by_name = tuple((rule_for(name), chosen) for name, chosen in own.items())
        other = self.exceptions
        return Plan(default, (*by_name, *other.rules), other.small, other.small_below, other.flat_is_small)

    def frame(self, plan: Plan | Codec) -> bytes:
        if self._last is None or self._last[0] != plan:
            self.n_encodes += 1
            self._last = plan, self._encoded(plan)
        return self._last[1]

    def _encoded(self, plan: Plan | Codec) -> bytes:
        if isinstance(plan, Plan):
            return dumps(self.tensors, plan, seed=self.seed)
        return wire.encode(self.tensors[""], plan, seed=self.seed)

    def coded(self) -> dict[str, NDArray[Any]]:
        """The tensors that get the spec, and not one of the exceptions; a lone array always does."""
        return {name: x for name, x in self.tensors.items() if x.size and not self._is_exception(name, x)}

    def _is_exception(self, name: str, x: NDArray[Any]) -> bool:
        exception = self.exceptions.exception_for(name, x.shape, arrays.dtype_name(x.dtype))
        return self.is_message and exception is not None

    def extent(self) -> tuple[int, tuple[float, float]]:
        """The size of the largest tensor; the smallest and the largest magnitude that is not zero."""
        largest, low, high = 1, math.inf, 0.0
        for x in self.coded().values():
            magnitude = np.abs(x[x != 0].astype(np.float32))
            largest = max(largest, x.size)
            if magnitude.size:
                low, high = min(low, float(magnitude.min())), max(high, float(magnitude.max()))
        return largest, (low, high) if high else (1.0, 1.0)


def _search(axis: Axis, size_at: Callable[[int | float], int], budget: int, at_least: float, spec: str) -> int | float:
    """The value with the largest frame within the budget: interpolation, kept honest by bisection."""
    sizes: dict[int, int] = {}

    def size(index: int) -> int:
        if index not in sizes:
            sizes[index] = size_at(axis.value(index))
        return sizes[index]

    low, high = sorted((0, axis.count - 1), key=size)
    if size(low) > budget:
        raise BudgetError(_unmet(axis, sizes, budget, spec))
    if size(high) <= budget:  # where sizes rise and fall again, the largest frames lie inside
        inside = [round(low + (high - low) * step / 8) for step in range(7, 0, -1)]
        low, high = high, next((index for index in inside if size(index) > budget), high)
    turn = 0
    while abs(high - low) > 1 and size(low) < max(_GOOD, at_least) * budget:
        turn += 1
        share = math.log(budget / size(low)) / math.log(size(high) / size(low)) if turn % 3 else 0.5
        step = min(abs(high - low) - 1, max(1, int(abs(high - low) * share)))
        middle = low + (step if high > low else -step)
        low, high = (middle, high) if size(middle) <= budget else (low, middle)
    best = max((index for index in sizes if sizes[index] <= budget), key=size)
    jumps = size(best) < at_least * budget < max(sizes.values())  # to and fro from value to value, perhaps
    for away in _NEIGHBOURS if jumps else ():
        near = [index for index in (low - away, low + away) if 0 <= index < axis.count and size(index) <= budget]
        best = max((best, *near), key=size)
        if size(best) >= at_least * budget:
            break
    if size(best) < at_least * budget:
        raise BudgetError(_unmet(axis, sizes, budget, spec))
    return axis.value(best)


def _unmet(axis: Axis, sizes: dict[int, int], budget: int, spec: str) -> str:
    """Why: out of range, or between two neighbouring values."""
    below = max((i for i in sizes if sizes[i] <= budget), key=lambda i: sizes[i], default=None)
    above = min((i for i in sizes if sizes[i] > budget), key=lambda i: sizes[i], default=None)

    def at(index: int) -> str:
        return f"{sizes[index]} bytes at {axis.name}={axis.value(index)}"

    if below is None or above is None:
        smallest, largest = (pick(sizes, key=lambda i: sizes[i]) for pick in (min, max))
        return f"no frame of {spec!r} fills {budget} bytes: the smallest has {at(smallest)}, the largest {at(largest)}"
    return (
        f"no frame of {spec!r} fills {budget} bytes: {at(below)}, the next {at(above)}; "
        f"lower at_least below {sizes[below] / budget:.3f} to accept the smaller, or leave a finer parameter open"
    )
