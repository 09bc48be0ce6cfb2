"""`perbit inspect`: what a frame or a delta holds and where its bytes go."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import perbit
from perbit import delta, files
from perbit.commands.common import (
    EXIT_OK,
    human_bytes,
    json_option,
    limit_options,
    limits,
    print_json,
    tensor_label,
)
from perbit.printing import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a frame or a delta; -: standard input")
    limit_options(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    frame, bounds = files.read_bytes(options.input), limits(options)
    is_delta = delta.is_delta(frame, options.max_values)
    info = delta.inspect(frame, **bounds) if is_delta else perbit.inspect(frame, **bounds)
    if options.json:
        print_json(info)
        return EXIT_OK
    bits = f", {info['bits_per_value']:.3f} bits a value" if info["n_values"] else ""
    print(f"{options.input}: {info['kind']}, {human_bytes(info['n_bytes'])} for {info['n_values']} values{bits}")
    if is_delta:
        _print_ends(info)
    else:
        print(f"  header {human_bytes(info['header_bytes'])}, checksum {info['checksum_bytes']} B")
    for tensor in [info] if info["kind"] == "array" else info["tensors"]:
        _print_tensor(tensor)
    return EXIT_OK


def _print_ends(info: dict[str, Any]) -> None:
    """What a delta leads from and to, and what it takes."""
    said = "every bit is kept" if info["exact"] else "close to what it was made from"
    print(f"  base   {printable(info['base'])}\n  result {printable(info['result'])} ({said})")
    parts = ", ".join(f"{name} {human_bytes(n_bytes)}" for name, n_bytes in info["parts"].items())
    print(f"  header {human_bytes(info['header_bytes'])}, {parts}, checksum {info['checksum_bytes']} B")


def _print_tensor(tensor: dict[str, Any]) -> None:
    label = f"{tensor_label(tensor['name'])}  " if tensor.get("name") else ""
    how = "  ".join(printable(tensor[key]) for key in ("how", "spec") if key in tensor)
    print(f"  {label}{tensor['dtype']} {tuple(tensor['shape'])}  {how}")
    for section in tensor.get("sections", ()):
        print(f"    {section['name']:<12} {human_bytes(section['n_bytes'])}")
