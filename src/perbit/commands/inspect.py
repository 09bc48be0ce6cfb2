"""`perbit inspect`: what a frame holds and where its bytes go."""

from __future__ import annotations

import argparse
from pathlib import Path

import perbit
from perbit import files
from perbit.commands.common import (
    EXIT_OK,
    human_bytes,
    json_option,
    limit_options,
    limits,
    print_json,
    printable,
    tensor_label,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a frame; -: standard input")
    limit_options(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    info = perbit.inspect(files.read_bytes(options.input), **limits(options))
    if options.json:
        print_json(info)
        return EXIT_OK
    bits = f", {info['bits_per_value']:.3f} bits a value" if info["n_values"] else ""
    print(f"{options.input}: {info['kind']}, {human_bytes(info['n_bytes'])} for {info['n_values']} values{bits}")
    print(f"  header {human_bytes(info['header_bytes'])}, checksum {info['checksum_bytes']} B")
    for tensor in info["tensors"] if info["kind"] == "message" else [info]:
        label = f"{tensor_label(tensor['name'])}  " if tensor.get("name") else ""
        print(f"  {label}{tensor['dtype']} {tuple(tensor['shape'])}  {printable(tensor['spec'])}")
        for section in tensor["sections"]:
            print(f"    {section['name']:<12} {human_bytes(section['n_bytes'])}")
    return EXIT_OK
