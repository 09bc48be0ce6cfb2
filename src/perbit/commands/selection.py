"""Which tensors of a file a command looks at, and what it says meanwhile."""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from perbit import files
from perbit.errors import PerbitError
from perbit.printing import printable


class ChoiceError(PerbitError):
    """Options that do not select anything, or contradict each other."""


def file_options(command: argparse.ArgumentParser, optional: bool = False) -> None:
    """The file, and which of its tensors."""
    command.add_argument("input", type=Path, nargs="?" if optional else None, help="a .npy, .npz or .safetensors file")
    command.add_argument("--layer", metavar="PATTERN", help="only tensors whose name matches, e.g. 'conv*'")
    command.add_argument("--json", action="store_true", help="print JSON for programs")


def tensors_of(path: Path, pattern: str | None) -> dict[str, NDArray[Any]]:
    """The tensors whose names match; a .npy file holds one, named like the file."""
    value = files.read_tensors(path)
    named = value if isinstance(value, dict) else {path.stem: value}
    named = {name: x for name, x in named.items() if name != files.METADATA}
    chosen = {name: x for name, x in named.items() if pattern is None or fnmatchcase(name, pattern)}
    if not chosen:
        raise ChoiceError(f"no tensor of {path} matches {pattern!r}; it has {', '.join(named) or 'none'}")
    return chosen


def progress(options: argparse.Namespace, text: str) -> None:
    """A line on stderr that the next one overwrites; silent where nobody watches."""
    if not options.json and sys.stderr.isatty():
        print(f"\r\x1b[2K{printable(text)}", end="", file=sys.stderr, flush=True)
