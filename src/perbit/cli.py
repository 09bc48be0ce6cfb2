"""The command line: `perbit codecs | encode | decode | inspect | bench`. A user's mistake is one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import perbit
from perbit import files, registry
from perbit.errors import PerbitError
from perbit.plan import Plan
from perbit.spec import signature

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it went."""
    options = _parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except PerbitError as error:
        print(f"perbit: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("perbit: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away, as `perbit codecs | head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes when it ends
        return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="perbit", description="Gradients and model updates as the fewest real bytes.")
    parser.add_argument("--version", action="version", version=f"perbit {perbit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("codecs", help="list every codec with its parameters")
    command.add_argument("name", nargs="?", help="show one codec in full")
    _json_option(command)
    command.set_defaults(run=_codecs)

    command = commands.add_parser("encode", help="encode the arrays of a file as one frame")
    command.add_argument("input", type=Path, help="a .npy, .npz or .safetensors file")
    command.add_argument("spec", help='e.g. "topk(0.01) | qsgd(15) | rans"')
    command.add_argument("-o", "--output", type=Path, help="the frame (default: the input's name with .pbit)")
    command.add_argument("--seed", type=int, help="fix every random choice")
    command.add_argument("--plan", action="store_true", help="keep tensors with one dimension or under 1024 values raw")
    _threads_option(command)
    _json_option(command)
    command.set_defaults(run=_encode)

    command = commands.add_parser("decode", help="decode a frame back into arrays")
    command.add_argument("input", type=Path, help="a frame")
    command.add_argument("-o", "--output", type=Path, help="a .npy file, or .npz or .safetensors for a message")
    command.add_argument("--max-values", type=int, help="refuse frames that claim more values than this")
    _threads_option(command)
    _json_option(command)
    command.set_defaults(run=_decode)

    command = commands.add_parser("inspect", help="say what a frame holds and where its bytes go")
    command.add_argument("input", type=Path, help="a frame")
    command.add_argument("--max-values", type=int, help="refuse frames that claim more values than this")
    _json_option(command)
    command.set_defaults(run=_inspect)

    command = commands.add_parser("bench", help="measure kernels and codecs as ratios to memcpy and to their peers")
    command.add_argument(
        "--n", type=_positive, default=16_000_000, help="values in the large arrays (default 16 million)"
    )
    command.add_argument("--repeats", type=_positive, default=7, help="the best of this many runs counts")
    command.add_argument("--only", help="run only the rows whose name contains this")
    command.add_argument("-o", "--output", type=Path, help="also write the rows to this JSON file")
    _threads_option(command)
    _json_option(command)
    command.set_defaults(run=_bench)
    return parser


def _json_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON for programs")


def _threads_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", type=_positive, default=1, help="threads for large arrays (default 1)")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def human_bytes(n_bytes: float) -> str:
    """A size for people: 3 significant digits, decimal units.

    >>> human_bytes(512), human_bytes(1_234_567)
    ('512 B', '1.23 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5 or unit == "GB":
            return f"{n_bytes:.3g} {unit}" if n_bytes >= 100 or unit == "B" else f"{n_bytes:.2f} {unit}"
        n_bytes /= 1000
    raise AssertionError("unreachable")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _codecs(options: argparse.Namespace) -> int:
    found = registry.classes()
    if options.name:
        cls = found.get(options.name) or type(
            perbit.codec(options.name)
        )  # the spec's own error names the closest match
        found = {cls.name: cls}
    rows = [
        {
            "name": cls.name,
            "call": signature(cls),
            "takes": cls.takes,
            "gives": cls.gives,
            "about": (cls.__doc__ or "").strip().splitlines()[0],
        }
        for cls in found.values()
    ]
    if options.json:
        _print_json(rows)
        return EXIT_OK
    order = {"floats": 0, "symbols": 1, "bytes": 2, "positions": 3}
    for row in sorted(rows, key=lambda row: (order[row["takes"]], row["name"])):
        print(f"{row['call']}\n    {row['takes']} → {row['gives']}: {row['about']}")
    return EXIT_OK


def _encode(options: argparse.Namespace) -> int:
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
        _print_json(result)
    else:
        bits = f", {result['bits_per_value']:.3f} bits a value" if n_values else ""
        print(f"{output}: {human_bytes(n_bytes)} → {human_bytes(len(frame))} ({result['ratio']:.1f} x smaller{bits})")
    return EXIT_OK


def _decode(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    frame = files.read_bytes(options.input)
    is_message = perbit.wire.read_header(frame, options.max_values).is_message
    value: Any = (perbit.loads if is_message else perbit.decode)(frame, max_values=options.max_values)
    output = options.output or options.input.with_suffix(".npz" if is_message else ".npy")
    files.write_tensors(output, value)
    shapes = {name: list(a.shape) for name, a in value.items()} if is_message else {"": list(value.shape)}
    if options.json:
        _print_json({"output": str(output), "shapes": shapes})
    else:
        what = f"{len(shapes)} tensors" if is_message else f"an array of shape {tuple(shapes[''])}"
        print(f"{output}: {what}")
    return EXIT_OK


def _inspect(options: argparse.Namespace) -> int:
    info = perbit.inspect(files.read_bytes(options.input), max_values=options.max_values)
    if options.json:
        _print_json(info)
        return EXIT_OK
    bits = f", {info['bits_per_value']:.3f} bits a value" if info["n_values"] else ""
    print(f"{options.input}: {info['kind']}, {human_bytes(info['n_bytes'])} for {info['n_values']} values{bits}")
    print(f"  header {human_bytes(info['header_bytes'])}, checksum {info['checksum_bytes']} B")
    for tensor in info.get("tensors") or [info]:
        label = f"{tensor['name']}  " if tensor.get("name") else ""
        print(f"  {label}{tensor['dtype']} {tuple(tensor['shape'])}  {tensor['spec']}")
        for section in tensor["sections"]:
            print(f"    {section['name']:<12} {human_bytes(section['n_bytes'])}")
    return EXIT_OK


def _bench(options: argparse.Namespace) -> int:
    import perbit.bench as bench

    perbit.set_threads(options.threads)
    rows = bench.run(options.n, options.repeats, options.only, progress=not options.json)
    if options.output:
        files.write_atomically(options.output, lambda file: file.write(json.dumps(rows, indent=2).encode()))
    if options.json:
        _print_json(rows)
    return EXIT_OK


if __name__ == "__main__":
    raise SystemExit(main())
