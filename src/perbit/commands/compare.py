"""`perbit compare`: train a model with several methods; table, report, and the spec to use. Can be killed and resumed."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from perbit.commands.common import EXIT_FAILED, EXIT_OK, json_option, positive, print_json, seed
from perbit.commands.progress import Display
from perbit.commands.runfolder import check_untouched, run_folder
from perbit.files import write_atomically, write_json
from perbit.sim.compare import config, pool, recipe, summary
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.jobs import check, jobs, n_cores
from perbit.sim.compare.pool import Job
from perbit.sim.federated.runs import Outcome


def add_options(parser: argparse.ArgumentParser) -> None:
    said = "a TOML file, demo (default), or one of perbit-papers: cnn, co3, m22, …"
    parser.add_argument("comparison", nargs="?", default="demo", help=said)
    parser.add_argument("--rounds", type=positive, help="other than the file says")
    parser.add_argument("--seeds", type=seed, nargs="+", help="other than the file says")
    output_options(parser)
    said = "run on the Ray cluster at this address, or on the one of this machine (auto), instead of in processes"
    parser.add_argument("--ray", metavar="ADDRESS", help=said)
    said = "once an epoch: how updates are distributed, layer by layer (statistics.jsonl in every run's folder, and in the report)"
    parser.add_argument("--statistics", action="store_true", help=said)


def output_options(parser: argparse.ArgumentParser) -> None:
    """What all commands that train share."""
    parser.add_argument("-o", "--output", type=Path, help="folder for results (default: perbit-runs/NAME)")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on where the same command was stopped")
    again.add_argument("--fresh", action="store_true", help="discard the runs that the folder holds")
    parser.add_argument("--processes", type=positive, default=n_cores(), help="runs at a time (default: one a core)")
    parser.add_argument("--no-report", action="store_true", help="draw no pictures, write no page")
    parser.add_argument("--dump-frames", action="store_true", help="keep every frame as a file `perbit decode` takes")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    if options.ray:
        import ray  # noqa: F401  who lacks it is told before anything is written
    comparison = _changed(config.load(options.comparison), options)
    output = options.output or Path("perbit-runs") / Path(options.comparison).stem
    check_untouched(output, options.resume, options.fresh)
    check(comparison)
    if not options.no_report:
        from perbit.report import charting

        charting.check()
    with run_folder(output, options.fresh):
        return _compare(comparison, output, options)


def _compare(comparison: Comparison, output: Path, options: argparse.Namespace) -> int:
    todo = jobs(comparison, output, options.resume, options.dump_frames, options.statistics)
    if not options.json:
        print(_title(comparison), flush=True)
    names = [f"{job.method.name} · {job.seed}" if len(comparison.seeds) > 1 else job.method.name for job in todo]
    with Display(names, comparison.task, quiet=options.json) as show:
        outcomes = _run_all(todo, options, show)
    results = summary.as_json(comparison, outcomes)
    write_json(output / "results.json", results)
    folders = [job.folder for job in todo]
    page = None
    if not options.no_report:
        from perbit.report import page as report_page

        page = report_page.write(comparison, outcomes, folders, output)
    rows = summary.rows(comparison, outcomes, folders)
    said = summary.text(rows)
    write_atomically(output / "table.txt", lambda file: file.write(said.encode()))
    best = summary.recommended(rows)
    if options.json:
        method = recipe.everything(best.method) if best else None
        about = {"advice": summary.advice(rows), "grounds": summary.grounds(rows), "method": method}
        print_json({"output": str(output), **about, **results})
    else:
        print(f"\n{said}", end="")
        print(f"\n{'Report' if page else 'Results'}: {page or output / 'results.json'}")
    return EXIT_FAILED if _failed(rows) else EXIT_OK


def _run_all(todo: list[Job], options: argparse.Namespace, show: Display) -> list[Outcome]:
    if not options.ray:
        return pool.run_all(todo, options.processes, show)
    from perbit.sim.compare import cluster

    return cluster.run_all(todo, options.ray, show)


def _failed(rows: list[summary.Row]) -> bool:
    """Whether float32 diverged, or every compressed method did; to have learnt little is no failure."""
    compressed = [row for row in rows if not row.method.is_float32]
    return any(row.diverged for row in rows if row.method.is_float32) or bool(
        compressed and all(row.diverged for row in compressed)
    )


def _changed(comparison: Comparison, options: argparse.Namespace) -> Comparison:
    if options.rounds:
        comparison = replace(comparison, task=replace(comparison.task, rounds=options.rounds))
    return replace(comparison, seeds=tuple(dict.fromkeys(options.seeds))) if options.seeds else comparison


def _title(comparison: Comparison) -> str:
    n_runs = len(comparison.methods) * len(comparison.seeds)
    return f"{comparison.title}: {len(comparison.methods)} methods, {n_runs} runs of {comparison.task.rounds} rounds"
