"""`perbit decode`: a frame back into arrays."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import perbit
from perbit import delta, files
from perbit.commands.common import (
    EXIT_OK,
    as_json,
    check_free,
    count_tensors,
    force_option,
    json_option,
    limit_options,
    limits,
    say,
    threads_option,
)
from perbit.errors import PerbitError
from perbit.files import STANDARD
from perbit.frame import wire


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a frame; -: standard input")
    parser.add_argument(
        "-o", "--output", type=Path, help="a .npy file, or .npz or .safetensors for a message; -: standard output"
    )
    parser.add_argument(
        "--format", choices=("npy", "npz", "safetensors"), help="the kind of file, if its name does not say it"
    )
    limit_options(parser)
    force_option(parser)
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    frame = files.read_bytes(options.input)
    if delta.is_delta(frame, options.max_values):
        raise PerbitError(
            f"{options.input} is a delta; make the new model with: perbit apply OLD {options.input} -o NEW"
        )
    is_message = wire.read_header(frame, options.max_values).is_message
    suffix = f".{options.format}" if options.format else ".npz" if is_message else ".npy"
    output = options.output or (STANDARD if options.input == STANDARD else options.input.with_suffix(suffix))
    check_free(output, options.force)
    value: Any = (perbit.loads if is_message else perbit.decode)(frame, **limits(options))
    files.write_tensors(output, value, suffix if options.format or output == STANDARD else "")
    shapes = {name: list(a.shape) for name, a in value.items()} if is_message else {"": list(value.shape)}
    what = count_tensors(shapes) if is_message else f"an array of shape {tuple(shapes[''])}"
    say(as_json({"output": str(output), "shapes": shapes}) if options.json else f"{output}: {what}", output)
    return EXIT_OK
