"""Ways to train with local steps, by name. docs/outer.md says where each comes from and what differs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist

from perbit.outer.localsteps import LocalSteps
from perbit.plan.plan import PlanLike


@dataclass(frozen=True)
class Preset:
    """The settings of a method; an outer rate of 1 without momentum makes the shared model the mean of all models."""

    spec: PlanLike
    every: int
    rate: float
    momentum: float
    error_feedback: bool | float

    def outer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """SGD, with Nesterov momentum if there is any."""
        return torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum, nesterov=self.momentum > 0)


PRESETS = {
    # Stich, 2019: models are averaged.
    "local_sgd": Preset("raw", every=8, rate=1.0, momentum=0.0, error_feedback=False),
    # Douillard et al., 2023: an outer optimizer, float32.
    "diloco": Preset("raw", every=500, rate=0.7, momentum=0.9, error_feedback=False),
    # After Sarfi et al., 2025: a 64th of the values in two bits, and error feedback instead of outer momentum.
    "sparseloco": Preset("topk(0.015625) | uniform(2) | rans", every=30, rate=1.0, momentum=0.0, error_feedback=0.95),
    # Ours: a tenth of a bit for each value, spent where it counts most, and error feedback instead of outer momentum.
    "rd": Preset("rd(bits=0.1)", every=30, rate=1.0, momentum=0.0, error_feedback=True),
}


def preset(
    name: str, model: torch.nn.Module, *, seed: int = 0, group: dist.ProcessGroup | None = None, **changes: Any
) -> LocalSteps:
    """`LocalSteps` with the settings of a method.

    Args:
        name: one of `PRESETS`.
        model: what is trained.
        seed: of all random choices.
        group: the ranks that train together; None for all.
        changes: other values for the fields of the `Preset`, such as `every=100`.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    known = [field.name for field in fields(Preset)]
    if unknown := changes.keys() - known:
        raise ValueError(f"a preset has no setting {min(unknown)!r}; it has {', '.join(known)}")
    chosen = replace(PRESETS[name], **changes)
    return LocalSteps(
        model, chosen.spec, every=chosen.every, outer=chosen.outer, error_feedback=chosen.error_feedback, seed=seed, group=group
    )  # fmt: skip
