"""What several commands share: options, exit codes, sizes for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from perbit.files import METADATA, STANDARD, FileError, read_tensors
from perbit.printing import printable

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_STOPPED = 0, 1, 2, 130


def json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def threads_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=positive, default=1, help="threads for large arrays (default 1)")


def limit_options(parser: argparse.ArgumentParser) -> None:
    """What decoding a frame may take; `limits` gives them to perbit.decode."""
    for name, unit in (("values", "values"), ("memory", "bytes of memory"), ("operations", "operations")):
        parser.add_argument(f"--max-{name}", type=int, help=f"refuse frames that take more {unit} than this")


def limits(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("max_values", "max_memory", "max_operations")}


def force_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")


def check_free(output: Path, force: bool) -> None:
    """Refuse to replace a file, be it the input itself, unless the user insists; what is no file, writing refuses."""
    if output != STANDARD and not force and os.path.lexists(output) and not output.is_dir():
        raise FileError(f"{output} exists already; choose another name with -o, or replace it with --force")


def say(text: str, output: Path | None) -> None:
    """A line for people, or JSON; where standard output holds the result, it goes to standard error."""
    print(text, file=sys.stderr if output == STANDARD else sys.stdout)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2)


def tensors_in(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file by name; a lone array has none."""
    value = read_tensors(path)
    return value if isinstance(value, dict) else {"": value}


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def seed(text: str) -> int:
    """A seed that every part of a run takes."""
    value = int(text)
    if not 0 <= value < 1 << 63:
        raise argparse.ArgumentTypeError("must be a whole number below 2^63")
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


def tensor_label(name: str) -> str:
    """A tensor's name for people; what a .safetensors file says of itself is none."""
    return "(metadata of the file)" if name == METADATA else printable(name, 200)


def count_tensors(names: Iterable[str]) -> str:
    """How many tensors a file holds, in words.

    >>> count_tensors(["w", "b", METADATA]), count_tensors([""])
    ('2 tensors', '1 tensor')
    """
    n = sum(name != METADATA for name in names)
    return f"{n} tensor{'s' * (n != 1)}"


def print_json(value: Any) -> None:
    print(as_json(value))
