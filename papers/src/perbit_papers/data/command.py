"""`perbit data`: get data sets by package name, or from a directory, and list what is there."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from perbit.commands.common import json_option, print_json
from perbit.sim.data import DataError
from perbit_papers.data import store
from perbit_papers.data.checksums import CHECKSUMS
from perbit_papers.data.packages import Say
from perbit_papers.data.recipes import RECIPES

CLEAR = "\r\033[K"  # to the start of the terminal's line, and wipe it
LICENCES = {
    "cifar10": "none stated",
    "mnist": "usually given as CC BY-SA 3.0",
    "fashion-mnist": "MIT",
    "movielens": "research use only, not to be redistributed",
    "mnist_writers": "BSD",
    "tinyshakespeare": "public domain",
    "shakespeare_roles": "public domain",
    "hapt": "CC BY 4.0",
    "a9a": "CC BY 4.0",
    "w8a": "none stated",
    "phishing": "CC BY 4.0",
    "mushrooms": "CC BY 4.0",
}
FILE_OF = {
    "shakespeare": "tinyshakespeare",
    "shakespeare-roles": "shakespeare_roles",
    "shakespeare-words": "shakespeare_roles",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets to get, or `all`; none: list what is there")
    parser.add_argument("--root", type=Path, help="where they are kept (default: $PERBIT_DATA or ~/.cache/perbit)")
    parser.add_argument("--from", dest="source", type=Path, metavar="DIR", help="take them from the files in DIR")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Get what is named, or list what is there."""
    names, source, root = options.names, options.source, store.data_root(options.root)
    there = {}
    for name in _wanted(names, source):
        path = root / f"{name}.npz"
        if source:
            store.bring(name, source, root)
        elif not store.is_whole(name, root):
            store.fetch(name, root, _speaker(name))
            print(CLEAR if sys.stderr.isatty() else "", end="", file=sys.stderr, flush=True)
        there[name] = str(path)
        if not options.json:
            print(f"{name}: {path}")
    if options.json:
        print_json({"root": str(root), "there": there or _there(root)})
    elif not names and not source:
        _list(root)
    return 0


def _there(root: Path) -> dict[str, str]:
    """The files of all data sets that are there already."""
    paths = {name: root / f"{name}.npz" for name in LICENCES}
    return {name: str(path) for name, path in paths.items() if path.is_file()}


def _wanted(names: list[str], source: Path | None) -> list[str]:
    """File stems for the names: `all` and, with --from, no name mean everything that can be had."""
    if source and (not names or names == ["all"]):
        found = [name for name in CHECKSUMS if (source / f"{name}.npz").is_file()]
        if not found:
            raise DataError(f"{source} holds none of {', '.join(f'{name}.npz' for name in CHECKSUMS)}")
        return found
    if names == ["all"]:
        return list(RECIPES)
    return [_stem(name) for name in names if name != "digits"]


def _stem(name: str) -> str:
    stem = FILE_OF.get(name, name)
    if stem not in CHECKSUMS:
        known = [*CHECKSUMS, *FILE_OF]
        close = difflib.get_close_matches(name, known, n=1)
        raise DataError(
            f"there is no data set {name}; " + (f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}")
        )
    return stem


def _speaker(name: str) -> Say:
    """Progress on standard error: one line that renews itself on a terminal, one line a message elsewhere."""
    start, end = (CLEAR, "") if sys.stderr.isatty() else ("", "\n")
    return lambda text: print(f"{start}{name}: {text} …", end=end, file=sys.stderr, flush=True)


def _list(root: Path) -> None:
    print(f"data root: {root}")
    print(f"  {'digits':<18} {'bundled':>9}  BSD (scikit-learn)")
    for name, licence in LICENCES.items():
        path = root / f"{name}.npz"
        size = f"{path.stat().st_size / 1e6:.1f} MB" if path.is_file() else "-"
        how = "" if path.is_file() else f"  perbit data {name}" + ("" if name in RECIPES else " --from DIR")
        print(f"  {name:<18} {size:>9}  {licence:<42}{how}")
