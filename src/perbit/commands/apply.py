"""`perbit apply`: the new model from the old one and a delta of `perbit diff`; both digests are checked."""

from __future__ import annotations

import argparse
from pathlib import Path

import perbit
from perbit import delta, dtypes, files
from perbit.commands.common import (
    EXIT_OK,
    as_json,
    check_free,
    count_tensors,
    force_option,
    json_option,
    say,
    tensors_in,
    threads_option,
)
from perbit.files import STANDARD, FileError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, help="the model that the delta was made for; -: standard input")
    parser.add_argument("delta", type=Path, help="a file of `perbit diff`; -: standard input")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="the new model: .safetensors, .npz or .npy; -: standard output"
    )
    parser.add_argument(
        "--format",
        choices=("npy", "npz", "safetensors"),
        help="the kind of file, if its name does not say it (default on standard output: that of the old model)",
    )
    parser.add_argument("--max-values", type=int, help="refuse deltas that lead to more values than this")
    force_option(parser)
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    files.check_one_standard(options.old, options.delta)
    check_free(options.output, options.force)
    data = files.read_bytes(options.delta)
    old = tensors_in(options.old)
    new = delta.apply(old, data, max_values=options.max_values)
    suffix = _suffix(options, is_lone=set(old) == {""})
    if suffix != ".safetensors":
        _refuse_what_numpy_cannot_hold(suffix, {x.dtype.name for x in new.values()})
    files.write_tensors(options.output, new[""] if set(new) == {""} else new, suffix)
    result = delta.about(data)["result"]
    about = {"output": str(options.output), "n_tensors": len(new), "result": result}
    said = f"{options.output}: {count_tensors(new)}, digest {result[:16]}… as it was meant"
    say(as_json(about) if options.json else said, options.output)
    return EXIT_OK


def _suffix(options: argparse.Namespace, is_lone: bool) -> str:
    """The kind of file that the new model becomes."""
    if options.format:
        return f".{options.format}"
    if options.output != STANDARD:
        return str(options.output.suffix)
    return str(options.old.suffix) or (".npy" if is_lone else ".safetensors")


def _refuse_what_numpy_cannot_hold(suffix: str, kinds: set[str]) -> None:
    for kind in sorted(kinds & set(dtypes.STORED)):
        raise FileError(f"a {suffix} file cannot hold {kind}; write a .safetensors file")
