"""`perbit train`: one method on one task, both from options; the task may start from a comparison's."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from perbit.commands.common import EXIT_FAILED, EXIT_OK, human_bytes, print_json, seed
from perbit.commands.compare import output_options
from perbit.commands.planning import exception_options, split_rule
from perbit.commands.progress import Display
from perbit.commands.runfolder import check_untouched, run_folder
from perbit.errors import PerbitError
from perbit.sim.compare import config, pool
from perbit.sim.compare.jobs import check
from perbit.sim.compare.pool import Job
from perbit.sim.federated.settings import Method, Task


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task", default="demo", help="the comparison whose task is taken, unless options below say otherwise"
    )
    task_options(parser)
    parser.add_argument("--protocol", default="fedavg", help="a name from perbit.protocols.presets (default: fedavg)")
    parser.add_argument("--up", default="raw", help="spec of the clients' messages (default: raw)")
    parser.add_argument("--down", default="raw", help="spec of the server's messages (default: raw)")
    exception_options(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the protocol, e.g. decay=1"
    )
    parser.add_argument(
        "--whole-model",
        action="store_true",
        help="topk, up or down, keeps its share of the whole model, not of every tensor",
    )
    parser.add_argument("--seed", type=seed, default=0)
    output_options(parser)


def task_options(parser: argparse.ArgumentParser) -> None:
    """An option for every field of a task."""
    types = get_type_hints(Task)
    for field in fields(Task):
        kind = type(field.default)
        words = get_args(types[field.name]) or None  # of a Literal
        said = f"(default: {field.default})" if field.default != "" else '"module:function"'
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, choices=words, help=said)


def task_of(options: argparse.Namespace) -> Task:
    """The task of the named comparison, with what the options change."""
    values = {field.name: getattr(options, field.name) for field in fields(Task)}
    given = {key: value for key, value in values.items() if value is not None}
    task = config.load(options.task).task
    if given.get("data", task.data) != task.data:
        task = replace(task, test_share=0.0)  # other data bring a test part of their own
    return replace(task, **given)


def run(options: argparse.Namespace) -> int:
    task = task_of(options)
    parameters = dict(_parameter(text) for text in options.set)
    specs = (options.protocol, options.up, options.down, options.small)
    rules = dict(map(split_rule, options.rule))
    method = Method("train", *specs, parameters, whole_model=options.whole_model, rules=rules)
    output = options.output or Path("perbit-runs") / "train"
    check_untouched(output, options.resume, options.fresh)
    check(config.Comparison("train", task, (method,), (options.seed,)))
    job = Job(task, method, options.seed, output, options.resume, None, options.dump_frames)
    with run_folder(output, options.fresh), Display([options.up], task, quiet=options.json) as show:
        (outcome,) = pool.run_all([job], 1, show)
    code = EXIT_FAILED if outcome["diverged"] else EXIT_OK
    if options.json:
        print_json(outcome)
        return code
    last = outcome["history"][-1]["accuracy"]
    reached = f"{task.metric} {last:.4g}" if task.metric else f"accuracy {last:.1%}"
    if outcome["diverged"]:
        reached = f"training diverged ({outcome['why']})"
    print(
        f"{reached} after {outcome['done']} rounds; {human_bytes(outcome['bytes_up'])} up, "
        f"{human_bytes(outcome['bytes_down'])} down. Every message: {output / 'ledger.jsonl'}"
    )
    return code


def _parameter(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    if not value:
        raise PerbitError(f"a parameter is written key=value, not {text!r}")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value
