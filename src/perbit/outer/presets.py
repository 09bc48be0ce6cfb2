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
    fragments: int = 1
    delay: int = 0
    keep: float = 0.0
    apart: bool = False

    def outer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """SGD, with Nesterov momentum if there is any."""
        return torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum, nesterov=self.momentum > 0)


PRESETS = {
    # Stich, 2019: models are averaged.
    "local_sgd": Preset("raw", every=8, rate=1.0, momentum=0.0, error_feedback=False),
    # Douillard et al., 2023: an outer optimizer, float32.
    "diloco": Preset("raw", every=500, rate=0.7, momentum=0.9, error_feedback=False),
    # Douillard et al., 2025: fragments that travel while training goes on, four bits a value. The paper's are floats of three exponent bits.
    "diloco_int4": Preset(
        "qsgd(7) | rans", every=100, rate=0.7, momentum=0.9, error_feedback=False, fragments=4, delay=5, keep=0.5
    ),
    # Sarfi et al., 2025: 64 of every 4096 values in two bits, and error feedback instead of outer momentum.
    "sparseloco": Preset(
        "topk(k=64, chunk=4096) | mwl2(2, 2) | rans", every=30, rate=1.0, momentum=0.0, error_feedback=0.95
    ),
    # Ours: a tenth of a bit for each value, spent where it counts most; what could not be sent stays in the worker's own model.
    "rd": Preset("rd(bits=0.1)", every=30, rate=1.0, momentum=0.3, error_feedback=0.9, apart=True),
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
    handed_on = {field: getattr(chosen, field) for field in known if field not in ("spec", "rate", "momentum")}
    return LocalSteps(model, chosen.spec, outer=chosen.outer, seed=seed, group=group, **handed_on)
