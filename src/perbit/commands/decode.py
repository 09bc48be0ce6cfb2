"""`perbit decode`: a frame back into arrays."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import perbit
from perbit import files
from perbit.commands.common import (
    EXIT_OK,
    check_free,
    force_option,
    json_option,
    limit_options,
    limits,
    print_json,
    threads_option,
)
from perbit.frame import wire


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a frame")
    parser.add_argument("-o", "--output", type=Path, help="a .npy file, or .npz or .safetensors for a message")
    limit_options(parser)
    force_option(parser)
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    frame = files.read_bytes(options.input)
    is_message = wire.read_header(frame, options.max_values).is_message
    output = options.output or options.input.with_suffix(".npz" if is_message else ".npy")
    check_free(output, options.force)
    value: Any = (perbit.loads if is_message else perbit.decode)(frame, **limits(options))
    files.write_tensors(output, value)
    shapes = {name: list(a.shape) for name, a in value.items()} if is_message else {"": list(value.shape)}
    if options.json:
        print_json({"output": str(output), "shapes": shapes})
    else:
        what = f"{len(shapes)} tensors" if is_message else f"an array of shape {tuple(shapes[''])}"
        print(f"{output}: {what}")
    return EXIT_OK
