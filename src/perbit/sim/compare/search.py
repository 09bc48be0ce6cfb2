"""Successive halving over specs: many for one round, fewer for more rounds, the best for all; what breaks the budget is out.

The bytes of a candidate are those of the rounds it ran, scaled to all rounds; the winner's are real to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import perbit
from perbit.errors import PerbitError
from perbit.plan.budget import Budget
from perbit.plan.plan import AUTO, SAME
from perbit.sim.compare.jobs import slugs
from perbit.sim.compare.pool import Job
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.settings import Method, Task

KEEP = 3  # one of so many goes on
SMALL_BELOW = 1024  # as plans have it
LEAST_BITS = 1000  # of a message; shorter ones are mostly headers
SHARES_OF_BUDGET = (0.97, 0.5)  # envelopes need a little
SHARE_OF_SMALL = 0.25  # of a message, at most, for small tensors
_FEEDBACK = {"decay": 1.0}
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Tried:
    """A candidate after some rounds."""

    method: Method
    rounds: int
    accuracy: float
    projected_mb: float  # up, over all rounds
    fate: str = "trained to the end"  # or why not


RunAll = Callable[[Sequence[Job]], list[Outcome]]
Say = Callable[[int, Sequence[Tried]], None]


def candidates(tensors: Mapping[str, Values], bits: int) -> list[Method]:
    """Specs from gentle to harsh: quantizers without memory; with error feedback `rd`, low rank and sparsifiers, by share or by
    a budget, the largest tensors by a rule of their own. Small tensors go exact unless that alone takes much of the budget.

    Args:
        tensors: those of the model.
        bits: what a message up may take.
    """
    plain = ["fp16", "uniform(8) | rans", "uniform(4) | rans", "qsgd(15) | rans", "qsgd(3) | rans", "qsgd(1) | rans"]
    made = [Method(up, "fedavg", up) for up in plain]
    made += [_with_feedback(f"rd(bits={share})") for share in (1, 0.3, 0.1, 0.03)]
    made += [_with_feedback(f"lowrank({rank}) | uniform(4) | rans") for rank in (1, 2, 4, 8)]
    for ratio in (0.1, 0.03, 0.01, 0.003, 0.001):
        made += [_with_feedback(f"topk({ratio}) | {values} | rans") for values in ("qsgd(7)", "mwl2(bits=2, m=2)")]
        made.append(_with_feedback(f"topk({ratio}) | mwl2(bits=2, m=2) | rans", whole_model=True))
    small = _small(tensors, bits)
    known = [
        method if method.up.startswith("rd(") else replace(method, small=small) for method in made + _by_rule(tensors)
    ]
    return known + [method for method in _by_budget(bits, small) if _fits(method, tensors)]


def _small(tensors: Mapping[str, Values], bits: int) -> str:
    """What small tensors get; `rd` has them in hand by itself."""
    n_small = sum(x.size for x in tensors.values() if x.size < SMALL_BELOW or x.ndim < 2)
    per_value = SHARE_OF_SMALL * bits / max(1, n_small)
    return AUTO if per_value >= 32 else "fp16" if per_value >= 16 else SAME


def _with_feedback(up: str, said: str = "", **more: Any) -> Method:
    name = f"{up}, of the whole model" if more.get("whole_model") else f"{up}{said}"
    return Method(name, "co3", up, options=_FEEDBACK, **more)


def _by_rule(tensors: Mapping[str, Values]) -> list[Method]:
    """The largest tensors harshly, what is left gently; where there are large tensors of several sizes."""
    sizes = sorted({x.size for x in tensors.values() if x.size >= SMALL_BELOW and x.ndim > 1})
    if len(sizes) < 2:
        return []
    rule = f"size:{sizes[-1]}.."
    pairs = (
        ("uniform(4) | rans", "topk(0.01) | qsgd(7) | rans"),
        ("topk(0.1) | qsgd(7) | rans", "topk(0.003) | qsgd(7) | rans"),
    )
    return [_with_feedback(up, f", the largest by {harsh}", rules={rule: harsh}) for up, harsh in pairs]


def _by_budget(bits: int, small: str) -> list[Method]:
    """What fills a share of each message's budget."""
    shares = [int(share * bits) for share in SHARES_OF_BUDGET]
    open_specs = {"topk(?) | mwl2(bits=2, m=2) | rans": small, "rd(?)": AUTO}
    return [
        _with_feedback(up, f" in {n} bits", budget_bits=n, small=given)
        for up, given in open_specs.items()
        for n in shares
        if n >= LEAST_BITS
    ]


def _fits(method: Method, tensors: Mapping[str, Values]) -> bool:
    """Whether the budget holds at least what such tensors need, whatever they are."""
    rng = np.random.default_rng(0)
    like = {name: rng.standard_normal(x.shape).astype(np.float32) for name, x in tensors.items()}
    try:
        perbit.dumps(like, Budget.of(method.up, small=method.small, n_bits=method.budget_bits), seed=0)
    except PerbitError:
        return False
    return True


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
) -> list[Tried]:
    """All candidates: those within the budget that trained for all rounds first, the best of them ahead."""
    folders = dict(zip([m.name for m in methods], slugs([m.name for m in methods]), strict=True))
    alive, smallest, dropped = list(methods), float("inf"), list[Tried]()
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
        dropped += [replace(t, fate="over the budget") for t in tried if t.projected_mb > budget_mb]
        if until == task.rounds:
            break
        n_left = len(fitting) if until == 1 else max(2, -(-len(fitting) // KEEP))
        alive = [t.method for t in fitting[:n_left]]
        dropped += [replace(t, fate=f"behind after {until} rounds") for t in fitting[n_left:]]
    return fitting + sorted(dropped, key=lambda t: (-t.rounds, -t.accuracy))


def _tried(method: Method, task: Task, outcome: Outcome) -> Tried:
    done = max(1, outcome["done"])
    accuracy = 0.0 if outcome["diverged"] else outcome["history"][-1]["accuracy"]
    return Tried(method, done, accuracy, outcome["bytes_up"] / done * task.rounds / 1e6)
