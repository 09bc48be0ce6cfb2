"""M22's strategies within a budget of real bytes: one threshold for the whole model, and fits that may be held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding.codec import Codec, Pipeline, stages_of
from perbit.coding.families.sparse import TopK
from perbit.errors import BudgetError
from perbit.frame import wire
from perbit.plan.budget import CHANNEL_HEAD
from perbit.plan.plan import Plan

_STEPS = 14  # of the search: the share that is kept is found to a thousandth


@dataclass(frozen=True)
class WithinBudget(Plan):
    """A plan whose `topk` keeps as large a share of the whole model as its messages of at most `n_bits` allow.

    Unlike `perbit.Budget` it takes a plan with fits that are held (`perbit.hold`).

    >>> x = {"w": np.random.default_rng(0).laplace(size=(100, 100)).astype(np.float32)}
    >>> plan = WithinBudget.within("topk(0.1) | mwl2(2, 2)", 8000)
    >>> 7800 < 8 * (len(wire.write(x, plan.codecs(x), seed=0)) + CHANNEL_HEAD) <= 8000
    True
    """

    n_bits: int = 0

    @classmethod
    def within(cls, spec: str, n_bits: int) -> WithinBudget:
        """Of a spec that begins with `topk(ratio)`; the ratio is where the search starts from."""
        plan = Plan.of(spec, small="raw", whole_model=True)
        return cls(plan.default, plan.rules, plan.small, plan.small_below, plan.flat_is_small, True, plan.fit, n_bits)

    def codecs(self, tensors: Mapping[str, NDArray[Any]], seed: int | None = 0) -> dict[str, Codec]:
        low, high, found = 1e-5, 1.0, None
        for _ in range(_STEPS):
            middle = float(np.sqrt(low * high))
            codecs = self._keeping(middle).codecs(tensors, seed)
            fits = 8 * (len(wire.write(dict(tensors), codecs, seed=seed)) + CHANNEL_HEAD) <= self.n_bits
            low, high, found = (middle, high, codecs) if fits else (low, middle, found)
        if found is None:
            raise BudgetError(f"not even a hundred-thousandth of the values fits into {self.n_bits} bits")
        return found

    def _keeping(self, ratio: float) -> Plan:
        def kept(codec: Codec) -> Codec:
            first, *rest = stages_of(codec)
            stage = replace(first, ratio=ratio) if isinstance(first, TopK) else first
            return Pipeline((stage, *rest)) if rest else stage

        rules = tuple((rule, kept(codec)) for rule, codec in self.rules)
        return Plan(kept(self.default), rules, self.small, self.small_below, self.flat_is_small, True, self.fit)
