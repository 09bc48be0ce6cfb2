"""`perbit diff`: what leads from one model file to another, bit for bit or by a spec."""

from __future__ import annotations

import argparse
from pathlib import Path

import perbit
from perbit import delta, files
from perbit.commands.common import (
    EXIT_OK,
    as_json,
    check_free,
    count_tensors,
    force_option,
    human_bytes,
    json_option,
    say,
    tensors_in,
    threads_option,
)
from perbit.commands.planning import plan_of, plan_options, warn_of_idle_rules


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "old", type=Path, help="the model that the receiver has: .safetensors, .npz or .npy; -: standard input"
    )
    parser.add_argument("new", type=Path, help="the model that it is to have; -: standard input")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="the delta, e.g. delta.pbit; -: standard output"
    )
    parser.add_argument(
        "--spec", help='code the differences by a spec, e.g. "rd(bits=0.5)"; without it every bit is kept'
    )
    plan_options(parser)
    parser.add_argument("--seed", type=int, help="fix every random choice")
    force_option(parser)
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    files.check_one_standard(options.old, options.new)
    plan = plan_of(options) if options.spec else None
    check_free(options.output, options.force)
    old, new = tensors_in(options.old), tensors_in(options.new)
    if plan is not None:
        warn_of_idle_rules(plan, new)
    made = delta.diff(old, new, plan, seed=options.seed)
    files.write_atomically(options.output, lambda file: file.write(made))
    about = delta.about(made)
    n_bytes = sum(x.nbytes for x in new.values())
    names = [name for name, *_ in about["tensors"]]
    kinds = [how for name, *_, how in about["tensors"] if name != files.METADATA]
    if options.json:
        sizes = {"input_bytes": n_bytes, "n_bytes": len(made), "ratio": n_bytes / len(made)}
        say(as_json({"output": str(options.output), **sizes, **about}), options.output)
        return EXIT_OK
    said = "exact" if about["exact"] else f"the differences of {kinds.count('added')} tensors by {options.spec}"
    smaller = f"{human_bytes(n_bytes)} → {human_bytes(len(made))} ({n_bytes / len(made):.1f} x smaller, {said})"
    say(f"{options.output}: {smaller}", options.output)
    say(f"{count_tensors(names)}, {kinds.count('same')} the same, {kinds.count('whole')} sent whole", options.output)
    return EXIT_OK
