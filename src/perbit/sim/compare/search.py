"""Successive halving over specs: many for one round, fewer for more rounds, the best for all; what breaks the budget is out.

The bytes of a candidate are those of the rounds it ran, scaled to all rounds; the winner's are real to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perbit.errors import PerbitError
from perbit.sim.compare.jobs import slugs
from perbit.sim.compare.pool import Job
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.settings import Method, Task

KEEP = 3  # one of so many goes on
_FEEDBACK = {"decay": 1.0}


@dataclass(frozen=True)
class Tried:
    """A candidate after some rounds."""

    method: Method
    rounds: int
    accuracy: float
    projected_mb: float  # up, over all rounds


RunAll = Callable[[Sequence[Job]], list[Outcome]]
Say = Callable[[int, Sequence[Tried]], None]


def candidates() -> list[Method]:
    """Specs from gentle to harsh: quantizers without memory; with error feedback `rd`, and sparsifiers, tensor by tensor or over the whole model."""
    plain = ["fp16", "uniform(8) | rans", "uniform(4) | rans", "qsgd(15) | rans", "qsgd(3) | rans", "qsgd(1) | rans"]
    made = [Method(up, "fedavg", up) for up in plain]
    made += [Method(up, "co3", up, options=_FEEDBACK) for up in (f"rd(bits={bits})" for bits in (1, 0.3, 0.1, 0.03))]
    for ratio in (0.1, 0.03, 0.01, 0.003, 0.001):
        for values, whole in (("qsgd(7)", False), ("mwl2(bits=2, m=2)", False), ("mwl2(bits=2, m=2)", True)):
            up = f"topk({ratio}) | {values} | rans"
            name = f"{up}, of the whole model" if whole else up
            made.append(Method(name, "co3", up, options=_FEEDBACK, whole_model=whole))
    return made


def rungs(rounds: int) -> list[int]:
    """How many rounds each stage goes to.

    >>> rungs(40), rungs(2)
    ([1, 4, 13, 40], [1, 2])
    """
    stages = [rounds]
    while stages[0] >= KEEP * 2:
        stages.insert(0, stages[0] // KEEP)
    return stages if stages[0] == 1 else [1, *stages]


def halving(
    task: Task,
    methods: Sequence[Method],
    budget_mb: float,
    seed: int,
    output: Path,
    run_all: RunAll,
    say: Say,
    resume: bool,
) -> Tried:
    """The best candidate within the budget, after all rounds."""
    folders = dict(zip([m.name for m in methods], slugs([m.name for m in methods]), strict=True))
    alive, smallest = list(methods), float("inf")
    for stage, until in enumerate(rungs(task.rounds)):
        jobs = [Job(task, m, seed, output / folders[m.name], resume or stage > 0, until) for m in alive]
        tried = [_tried(method, task, outcome) for method, outcome in zip(alive, run_all(jobs), strict=True)]
        smallest = min([smallest, *(t.projected_mb for t in tried)])
        fitting = sorted((t for t in tried if t.projected_mb <= budget_mb), key=lambda t: (-t.accuracy, t.projected_mb))
        if not fitting:
            raise PerbitError(
                f"no candidate fits {budget_mb:g} MB up over {task.rounds} rounds; the smallest needs about {smallest:.3g} MB"
            )
        say(until, fitting)
        n_left = len(fitting) if until == 1 < task.rounds else max(2, -(-len(fitting) // KEEP))
        alive = [t.method for t in fitting[:n_left]]
    return fitting[0]


def _tried(method: Method, task: Task, outcome: Outcome) -> Tried:
    done = max(1, outcome["done"])
    accuracy = 0.0 if outcome["diverged"] else outcome["history"][-1]["accuracy"]
    return Tried(method, done, accuracy, outcome["bytes_up"] / done * task.rounds / 1e6)
