"""`perbit encode`: the arrays of a file as one frame."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import perbit
from perbit import files
from perbit.commands.common import EXIT_OK, human_bytes, json_option, print_json, threads_option
from perbit.plan import Plan


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a .npy, .npz or .safetensors file")
    parser.add_argument("spec", help='e.g. "topk(0.01) | qsgd(15) | rans"')
    parser.add_argument("-o", "--output", type=Path, help="the frame (default: the input's name with .pbit)")
    parser.add_argument("--seed", type=int, help="fix every random choice")
    parser.add_argument("--plan", action="store_true", help="keep tensors with one dimension or under 1024 values raw")
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    codec = perbit.codec(options.spec)
    value = files.read_tensors(options.input)
    if isinstance(value, np.ndarray):
        frame = perbit.encode(value, codec, seed=options.seed, name=options.input.name)
        n_bytes, n_values = value.nbytes, value.size
    else:
        frame = perbit.dumps(value, Plan(codec) if options.plan else codec, seed=options.seed)
        n_bytes, n_values = sum(a.nbytes for a in value.values()), sum(a.size for a in value.values())
    output = options.output or options.input.with_suffix(".pbit")
    files.write_atomically(output, lambda file: file.write(frame))
    result = {
        "output": str(output),
        "spec": str(codec),
        "n_values": n_values,
        "input_bytes": n_bytes,
        "n_bytes": len(frame),
        "bits_per_value": 8 * len(frame) / n_values if n_values else None,
        "ratio": n_bytes / len(frame),
    }
    if options.json:
        print_json(result)
    else:
        bits = f", {result['bits_per_value']:.3f} bits a value" if n_values else ""
        print(f"{output}: {human_bytes(n_bytes)} → {human_bytes(len(frame))} ({result['ratio']:.1f} x smaller{bits})")
    return EXIT_OK
