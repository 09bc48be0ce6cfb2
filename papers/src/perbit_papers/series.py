"""A series of training runs that can be killed and goes on: one after the other on one core, with the time left, and verdicts at the end."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perbit.errors import PerbitError
from perbit.files import write_json
from perbit.sim.federated.settings import with_defaults
from perbit.sim.verdicts import Claim

Run = dict[str, Any]  # of one method and seed: at least a history of points with an accuracy


def late_accuracy(run: Run) -> float:
    """The mean accuracy of the last third of the evaluations, steadier than the last one.

    >>> late_accuracy({"history": [{"accuracy": x} for x in (0.1, 0.2, 0.3, 0.4, 0.5, 0.7)]})
    0.6
    """
    curve = [point["accuracy"] for point in run["history"]]
    return statistics.fmean(curve[-max(1, len(curve) // 3) :])


@dataclass(frozen=True)
class Contest:
    """A claim about two methods: what `by` makes of their runs, larger is better, paired over seeds."""

    claim: Claim
    ours: str
    theirs: str
    by: Callable[[Run], float] = late_accuracy

    def judged(self, runs: Sequence[Run], planned: int = 1) -> str | None:
        """One sentence; None while there is no seed that both have run. With fewer than the planned seeds nothing is decided yet."""
        found = {(run["method"], run["seed"]): self.by(run) for run in runs}
        seeds = sorted({seed for _, seed in found})
        both = [seed for seed in seeds if (self.ours, seed) in found and (self.theirs, seed) in found]
        if not both:
            return None
        verdict = self.claim.judged(
            [found[self.ours, seed] for seed in both], [found[self.theirs, seed] for seed in both]
        )
        if len(both) < planned:
            return f"{replace(verdict, outcome='INCONCLUSIVE')}; {len(both)} of {planned} seeds so far"
        return str(verdict)


def series(
    output: Path,
    settings: dict[str, Any],
    methods: Sequence[str],
    seeds: Sequence[int],
    one: Callable[[str, int], Run],
    contests: Sequence[Contest],
) -> list[str]:
    """Run what is missing in the file of results, seed by seed, methods of the claims first; give the verdicts.

    Args:
        output: JSON with all runs so far. Written after every run.
        settings: what the runs have in common. A file of other settings is refused.
        methods, seeds: the runs.
        one: trains one method with one seed.
        contests: the claims, stated before any run.
    """
    runs = _known(output, settings)
    done_before = {(run["method"], run["seed"]) for run in runs}
    claimed = {name for contest in contests for name in (contest.ours, contest.theirs)}
    todo = [(name, seed) for seed in seeds for name in methods if (name, seed) not in done_before]
    todo.sort(key=lambda one: one[0] not in claimed)
    for done, (name, seed) in enumerate(todo, 1):
        began = time.perf_counter()
        run = one(name, seed)
        runs.append({"method": name, "seed": seed, "seconds": round(time.perf_counter() - began, 1), **run})
        left = (len(todo) - done) * statistics.fmean(run["seconds"] for run in runs) / 60
        reached = f"{runs[-1]['history'][-1]['accuracy']:.1%}"
        print(f"{name}, seed {seed}: {reached}; {done} of {len(todo)}, about {left:.0f} minutes left", flush=True)
        write_json(output, {"settings": settings, "verdicts": _verdicts(contests, runs, len(seeds)), "runs": runs})
    said = _verdicts(contests, runs, len(seeds))
    print("\n".join(said))
    return said


def options(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """What every series takes on its command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=defaults.get("seeds", [0, 1, 2]))
    parser.add_argument("--samples", type=int, default=defaults.get("samples", 0), help="the first so many; 0: all")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default=defaults["model"])
    parser.add_argument("--output", type=Path, default=defaults.get("output"))
    return parser


def _known(output: Path, settings: dict[str, Any]) -> list[Run]:
    if not output.is_file():
        return []
    found = json.loads(output.read_text("utf-8"))
    if with_defaults(found["settings"], settings) != json.loads(json.dumps(settings)):
        raise PerbitError(f"{output} holds runs with other settings; give another --output")
    runs: list[Run] = found["runs"]
    return runs


def _verdicts(contests: Sequence[Contest], runs: Sequence[Run], planned: int) -> list[str]:
    return [said for contest in contests if (said := contest.judged(runs, planned)) is not None]
