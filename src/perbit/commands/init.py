"""`perbit init`: a commented comparison and a small Python module for data, model and training of your own, to be changed."""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path
from string import Template

from perbit import files
from perbit.commands.common import EXIT_OK, check_free, force_option, json_option, print_json

# What a task is about, who holds its samples, and how its clients train.
TASKS = {
    "table": ("Rows of numbers", "natural", "rate = 0.05\nmomentum = 0.9"),
    "images": ("Pictures", "dirichlet(0.5)", "rate = 0.05\nmomentum = 0.9"),
    "text": ("Texts", "natural", 'optimiser = "adam"\nrate = 0.005'),
}
TOML, MODULE = "compare.toml", "mine.py"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task", nargs="?", choices=tuple(TASKS), default="table", help="the kind of data (default: table)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("."), help="folder for the two files (default: this one)"
    )
    force_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    written = {options.output / TOML: _toml(options.task), options.output / MODULE: _module(options.task)}
    for path in written:
        check_free(path, options.force)
    files.make_folder(options.output)
    for path, text in written.items():
        data = text.encode()
        files.write_atomically(path, lambda file, data=data: file.write(data))  # type: ignore[misc]
    if options.json:
        print_json({"written": [str(path) for path in written]})
        return EXIT_OK
    go = "" if options.output == Path(".") else f"cd {options.output} && "
    print(f"{', '.join(map(str, written))} are yours to change. Try them with:\n\n    {go}perbit compare {TOML}")
    return EXIT_OK


def _toml(task: str) -> str:
    title, partition, training = TASKS[task]
    return Template(_template(TOML)).substitute(title=title, partition=partition, training=training)


def _module(task: str) -> str:
    return _template(f"{task}.py")


def _template(name: str) -> str:
    return resources.files("perbit.sim.templates").joinpath(name).read_text("utf-8")
