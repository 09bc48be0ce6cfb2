"""The runs of a comparison: who runs where."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from perbit.plan.rules import idle_rules
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.pool import Job
from perbit.sim.federated import local, world
from perbit.sim.federated.settings import Method, SettingsError


def jobs(
    comparison: Comparison, output: Path, resume: bool, dump_frames: bool = False, with_statistics: bool = False
) -> list[Job]:
    """Method by method, seed by seed, each in a folder of its own."""
    names = slugs([method.name for method in comparison.methods])
    return [
        Job(comparison.task, method, seed, output / f"{name}-seed{seed}", resume, None, dump_frames, with_statistics)
        for method, name in zip(comparison.methods, names, strict=True)
        for seed in comparison.seeds
    ]


def slugs(names: Sequence[str]) -> list[str]:
    """Names fit for files, all different.

    >>> slugs(["top 1 %", "top 1 %%", "FP16"])
    ['top-1', 'top-1-2', 'fp16']
    """
    made: list[str] = []
    for name in names:
        slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "method"
        n_same = sum(other == slug or other.rpartition("-")[0] == slug for other in made)
        made.append(f"{slug}-{n_same + 1}" if n_same else slug)
    return made


def check(comparison: Comparison) -> None:
    """Load the data, cut them up, build the model: what cannot run is said before anything is written."""
    place = world.build(comparison.task, comparison.seeds[0])
    for method in comparison.methods:
        _refuse_idle_rules(method, place.first)
    if comparison.task.metric:
        local.test(place.network, place.data)


def _refuse_idle_rules(method: Method, tensors: Mapping[str, NDArray[Any]]) -> None:
    shapes = {name: x.shape for name, x in tensors.items()}
    if idle := idle_rules(method.rules, shapes):
        names = ", ".join(list(shapes)[:6]) + (", …" if len(shapes) > 6 else "")
        raise SettingsError(
            f"method {method.name}: the rule {idle[0]!r} matches no tensor of the model; it has {names}", "rules"
        )


def n_cores() -> int:
    """How many processes may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
