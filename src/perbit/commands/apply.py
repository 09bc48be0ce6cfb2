"""`perbit apply`: the new model from the old one and a delta of `perbit diff`; both digests are checked."""

from __future__ import annotations

import argparse
from pathlib import Path

import perbit
from perbit import delta, dtypes, files
from perbit.commands.common import (
    EXIT_OK,
    check_free,
    force_option,
    json_option,
    print_json,
    tensors_in,
    threads_option,
)
from perbit.files import FileError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, help="the model that the delta was made for")
    parser.add_argument("delta", type=Path, help="a file of `perbit diff`")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the new model: .safetensors, .npz or .npy")
    parser.add_argument("--max-values", type=int, help="refuse deltas that lead to more values than this")
    force_option(parser)
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    if options.output == files.STANDARD:
        raise files.FileError("apply writes a file: give its name with -o, e.g. -o new.safetensors")
    check_free(options.output, options.force)
    data = files.read_bytes(options.delta)
    new = delta.apply(tensors_in(options.old), data, max_values=options.max_values)
    if options.output.suffix != ".safetensors":
        _refuse_what_numpy_cannot_hold(options.output, {x.dtype.name for x in new.values()})
    files.write_tensors(options.output, new[""] if set(new) == {""} else new)
    result = delta.about(data)["result"]
    if options.json:
        print_json({"output": str(options.output), "n_tensors": len(new), "result": result})
    else:
        print(f"{options.output}: {len(new)} tensors, digest {result[:16]}… as it was meant")
    return EXIT_OK


def _refuse_what_numpy_cannot_hold(output: Path, kinds: set[str]) -> None:
    for kind in sorted(kinds & set(dtypes.STORED)):
        raise FileError(f"a {output.suffix} file cannot hold {kind}; write a .safetensors file")
