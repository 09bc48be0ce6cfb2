"""`perbit encode`: the arrays of a file as one frame."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import perbit
from perbit import files
from perbit.commands.common import (
    EXIT_OK,
    as_json,
    check_free,
    force_option,
    human_bytes,
    json_option,
    say,
    threads_option,
)
from perbit.commands.planning import encoded, plan_of, plan_options
from perbit.files import STANDARD


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a .npy, .npz or .safetensors file; -: standard input")
    parser.add_argument("spec", help='what large tensors get, e.g. "topk(0.01) | qsgd(15) | rans"')
    parser.add_argument(
        "-o", "--output", type=Path, help="the frame (default: the input's name with .pbit); -: standard output"
    )
    plan_options(parser)
    parser.add_argument("--plan", action="store_true", help=argparse.SUPPRESS)  # once asked for what is now the default
    parser.add_argument("--seed", type=int, help="fix every random choice")
    force_option(parser)
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    plan = plan_of(options)
    if options.input.is_dir():
        raise files.FileError(f"{options.input} is a folder; encode takes a .npy, .npz or .safetensors file")
    output = options.output or (STANDARD if options.input == STANDARD else options.input.with_suffix(".pbit"))
    check_free(output, options.force)
    value = files.read_tensors(options.input)
    frame = encoded(value, plan, options.seed, options.input.name)
    files.write_atomically(output, lambda file: file.write(frame))
    arrays = [value] if isinstance(value, np.ndarray) else list(value.values())
    n_bytes, n_values = sum(a.nbytes for a in arrays), sum(a.size for a in arrays)
    result = {
        "output": str(output),
        "spec": str(plan.default),
        "n_values": n_values,
        "input_bytes": n_bytes,
        "n_bytes": len(frame),
        "bits_per_value": 8 * len(frame) / n_values if n_values else None,
        "ratio": n_bytes / len(frame),
    }
    bits = f", {result['bits_per_value']:.3f} bits a value" if n_values else ""
    said = f"{output}: {human_bytes(n_bytes)} → {human_bytes(len(frame))} ({result['ratio']:.1f} x smaller{bits})"
    say(as_json(result) if options.json else said, output)
    return EXIT_OK
