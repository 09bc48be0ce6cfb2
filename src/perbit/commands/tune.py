"""`perbit tune`: the spec with the best accuracy under a byte budget, by successive halving; prints what to paste."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perbit.commands.common import EXIT_OK, print_json, seed
from perbit.commands.compare import output_options
from perbit.commands.progress import Display
from perbit.commands.runfolder import check_untouched, run_folder
from perbit.commands.train import task_of, task_options
from perbit.errors import PerbitError
from perbit.files import write_atomically, write_json
from perbit.sim.compare import pool, recipe, summary
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.jobs import check, jobs
from perbit.sim.compare.pool import Job
from perbit.sim.compare.search import Tried, candidates, halving
from perbit.sim.compare.summary import Row
from perbit.sim.federated import world
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.settings import Method, Task

FINALISTS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget-mb", type=float, required=True, help="uplink bytes of all clients over the whole run, in MB"
    )
    parser.add_argument(
        "--task", default="demo", help="the comparison whose task is taken, unless options below say otherwise"
    )
    task_options(parser)
    said = "the first is for the search, all are for float32 and those that came to its end (default: 0 1 2)"
    parser.add_argument("--seeds", "--seed", type=seed, nargs="+", default=[0, 1, 2], help=said)
    output_options(parser)


def run(options: argparse.Namespace) -> int:
    if not options.budget_mb > 0:
        raise PerbitError(f"the budget must be above 0 MB, not {options.budget_mb:g}")
    task, seeds = task_of(options), tuple(dict.fromkeys(options.seeds))
    output = options.output or Path("perbit-runs") / "tune"
    check_untouched(output, options.resume, options.fresh)
    bits = int(8e6 * options.budget_mb / (task.rounds * task.present))
    methods = candidates(world.build(task, seeds[0]).first, bits)
    check(Comparison("tune", task, tuple(methods), seeds))
    if not options.no_report:
        from perbit.report import charting

        charting.check()

    def run_all(todo: Sequence[Job]) -> list[Outcome]:
        names = [f"{job.method.name} · {job.seed}" if len(seeds) > 1 else job.method.name for job in todo]
        with Display(names, task, options.json, todo[0].until) as show:
            return pool.run_all(todo, options.processes, show)

    def say(rounds: int, fitting: Sequence[Tried]) -> None:
        if not options.json:
            print(f"after {rounds} rounds {len(fitting)} fit the budget; ahead: {fitting[0].method.name}", flush=True)

    with run_folder(output, options.fresh):
        tried = halving(task, methods, options.budget_mb, seeds[0], output, run_all, say, options.resume)
        finals = _finals(options, task, seeds, tried)
        todo = jobs(finals, output, options.resume)
        outcomes = run_all(todo)
        rows = summary.rows(finals, outcomes, [job.folder for job in todo])
        page = _write(options, output, finals, outcomes, [job.folder for job in todo], tried, rows)
    if options.json:
        print_json(_result(rows, tried, options.budget_mb))
    else:
        print(f"\n{_text(rows, tried, options.budget_mb)}")
        print(f"{'Report' if page else 'Results'}: {page or output / 'results.json'}")
    return EXIT_OK


def _finals(options: argparse.Namespace, task: Task, seeds: tuple[int, ...], tried: Sequence[Tried]) -> Comparison:
    """float32 and the best of the search, with all seeds."""
    ahead = [t.method for t in tried if t.rounds == task.rounds and t.projected_mb <= options.budget_mb][:FINALISTS]
    return Comparison(f"The best under {options.budget_mb:g} MB up", task, (Method("float32"), *ahead), seeds)


def _write(
    options: argparse.Namespace,
    output: Path,
    finals: Comparison,
    outcomes: Sequence[Outcome],
    folders: Sequence[Path],
    tried: Sequence[Tried],
    rows: Sequence[Row],
) -> Path | None:
    """The results, what was tried as a table and a picture, and the report of the finals."""
    write_json(output / "results.json", summary.as_json(finals, outcomes))
    write_json(output / "tried.json", [_plain(t) for t in tried])
    said = _text(rows, tried, options.budget_mb)
    write_atomically(output / "table.txt", lambda file: file.write(said.encode()))
    if options.no_report:
        return None
    from perbit.report import page, tried_picture

    picture = tried_picture.draw(tried, rows[0], options.budget_mb)
    return page.write(finals, outcomes, folders, output, [picture])


def _plain(t: Tried) -> dict[str, Any]:
    reached = {"rounds": t.rounds, "accuracy": t.accuracy, "mb_up": t.projected_mb, "fate": t.fate}
    return {"method": asdict(t.method), **reached}


def tried_table(tried: Sequence[Tried]) -> str:
    """Every candidate, how far it came, and why it went no further."""
    lines = [("tried", "rounds", "reached", "MB up", "")]
    lines += [(t.method.name, f"{t.rounds}", f"{t.accuracy:.4g}", f"{t.projected_mb:.3f}", t.fate) for t in tried]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(line[i].rjust(widths[i]) for i in (1, 2, 3)), line[4]]).rstrip()
        for line in lines
    )


def chosen(rows: Sequence[Row], budget_mb: float) -> Row:
    """The most accurate of those that keep the budget in all seeds' mean; the search's first if none does."""
    fitting = [row for row in rows[1:] if row.mb_up <= budget_mb and not row.diverged]
    return max(fitting, key=lambda row: (row.accuracy, -row.mb_up), default=rows[1])


def _tuned(best: Row) -> Method:
    return replace(best.method, name="tuned")


def _told(rows: Sequence[Row], best: Row) -> list[str]:
    """Whether the seeds tell the best method from float32 and from the others that came to the end."""
    rivals = [row for row in rows if row is not best and not row.diverged]
    return [f"Beside {row.method.name}: {summary.told_apart(best, row)}" for row in rivals]


def _result(rows: Sequence[Row], tried: Sequence[Tried], budget_mb: float) -> dict[str, Any]:
    """The best method and all that was tried, for programs."""
    best = chosen(rows, budget_mb)
    reached = {"accuracy": best.accuracy, "accuracy_sd": best.accuracy_sd, "mb_up": best.mb_up}
    finals = [{"name": row.method.name, "accuracy": row.accuracy, "mb_up": row.mb_up} for row in rows]
    more = {"finals": finals, "told_apart": _told(rows, best), "tried": [_plain(t) for t in tried]}
    return {**recipe.keys(_tuned(best)), **reached, "method": recipe.everything(_tuned(best)), **more}


def _cheaper(rows: Sequence[Row], best: Row) -> str:
    """The report recommends what sends least within a point of float32: that may be another method."""
    other = summary.recommended(rows)
    if other is None or other is best:
        return ""
    return f"\nThe report recommends {other.method.name}: {other.accuracy_text} with {other.mb_up:.3f} MB up. {summary.advice(rows)}"


def _text(rows: Sequence[Row], tried: Sequence[Tried], budget_mb: float) -> str:
    """All that was tried, float32 and the last ones over all seeds, and the best method complete: what table.txt holds, too."""
    best = chosen(rows, budget_mb)
    reached = f"{best.accuracy_text} with {best.mb_up:.3f} MB up"
    said = f"best under {budget_mb:g} MB: {best.method.name}, {reached}. {' '.join(_told(rows, best))}{_cheaper(rows, best)}"
    forms = [f"{where}:\n\n{code}" for where, code in recipe.everything(_tuned(best)).items()]
    return "\n\n".join([tried_table(tried), summary.table(rows), f"{said}\nTo paste:", *forms]) + "\n"
