"""`perbit tune`: the spec with the best accuracy under a byte budget, by successive halving; prints what to paste."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perbit.commands.common import EXIT_OK, print_json
from perbit.commands.compare import output_options
from perbit.commands.progress import Display
from perbit.commands.runfolder import check_untouched, run_folder
from perbit.commands.train import task_of, task_options
from perbit.errors import PerbitError
from perbit.sim.compare import config, pool, recipe
from perbit.sim.compare.jobs import check
from perbit.sim.compare.pool import Job
from perbit.sim.compare.search import Tried, candidates, halving
from perbit.sim.federated.runs import Outcome


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget-mb", type=float, required=True, help="uplink bytes of all clients over the whole run, in MB"
    )
    parser.add_argument(
        "--task", default="demo", help="the comparison whose task is taken, unless options below say otherwise"
    )
    task_options(parser)
    parser.add_argument("--seed", type=int, default=0)
    output_options(parser)


def run(options: argparse.Namespace) -> int:
    if not options.budget_mb > 0:
        raise PerbitError(f"the budget must be above 0 MB, not {options.budget_mb:g}")
    task, methods = task_of(options), candidates()
    output = options.output or Path("perbit-runs") / "tune"
    check_untouched(output, options.resume, options.fresh)
    check(config.Comparison("tune", task, tuple(methods), (options.seed,)))

    def run_all(jobs: Sequence[Job]) -> list[Outcome]:
        with Display([job.method.name for job in jobs], jobs[0].until or task.rounds, quiet=options.json) as show:
            return pool.run_all(jobs, options.processes, show)

    def say(rounds: int, fitting: Sequence[Tried]) -> None:
        if not options.json:
            print(f"after {rounds} rounds {len(fitting)} fit the budget; ahead: {fitting[0].method.name}", flush=True)

    with run_folder(output):
        best = halving(task, methods, options.budget_mb, options.seed, output, run_all, say, options.resume)
    tuned = replace(best.method, name="tuned")
    if options.json:
        reached = {"accuracy": best.accuracy, "mb_up": best.projected_mb}
        print_json({**recipe.keys(tuned), **reached, "method": recipe.everything(tuned)})
    else:
        found = f"{best.accuracy:.1%} with {best.projected_mb:.3f} MB up, one seed"
        print(f"\nbest under {options.budget_mb:g} MB: {found}. To paste:")
        for where, code in recipe.everything(tuned).items():
            print(f"\n{where}:\n\n{code}")
    return EXIT_OK
