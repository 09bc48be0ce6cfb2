"""`perbit data`: get data sets by package name, or list what is there."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets to get, or `all`; none: list what is there")
    parser.add_argument("--root", type=Path, help="where they are kept (default: $PERBIT_DATA or ~/.cache/perbit)")
    parser.add_argument("--from", dest="source", type=Path, metavar="DIR", help="take them from the files in DIR")


def run(options: argparse.Namespace) -> int:
    from perbit.sim import data_cli

    return data_cli.run(options.names, options.root, options.source)
