"""`perbit fit`: a line of parameters and distances for every tensor, and a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from perbit.commands.common import EXIT_OK, check_free, force_option, print_json
from perbit.commands.selection import ChoiceError, file_options, progress, tensors_of
from perbit.printing import printable
from perbit.report import fits


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `perbit fit`."""
    file_options(command)
    command.add_argument("--method", choices=("moments", "mle"), default="moments", help="how GenNorm is fitted")
    command.add_argument("--plot", type=Path, metavar="OUT.png", help="draw histogram, distances and kurtosis")
    force_option(command)


def run(options: argparse.Namespace) -> int:
    """Fit, print, draw."""
    if options.plot:
        check_free(options.plot, options.force)
    tensors = tensors_of(options.input, options.layer)
    width = max(8, max(map(len, tensors)) + 2)
    rows: list[fits.TensorFit] = []
    for name, x in tensors.items():
        progress(options, f"fitting {name} ...")
        if (row := fits.fit_tensor(name, x, options.method)) is None:
            continue
        progress(options, "")
        if not rows and not options.json:
            print(fits.table_line(None, width))
        rows.append(row)
        if not options.json:
            print(printable(fits.table_line(row, width)), flush=True)
    progress(options, "")
    if not rows:
        raise ChoiceError(
            f"{options.input} has no tensor to fit: floats, at least {fits.FEWEST} of them not zero, not all equal"
        )
    if options.json:
        print_json([row.as_json() for row in rows])
    else:
        skipped = len(tensors) - len(rows)
        print(
            f"distances in units of sigma, * the smallest{f'; {skipped} tensors have nothing to fit' if skipped else ''}"
        )
    if options.plot:
        from perbit.report import fit_picture

        largest = max(rows, key=lambda row: row.n)
        fit_picture.draw(rows, tensors[largest.name], largest, options.plot)
    return EXIT_OK
