"""`perbit rd`: distortion against real bits of many specs, as a table, JSON and a picture."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np

from perbit import files
from perbit.commands.common import EXIT_OK, print_json
from perbit.commands.selection import ChoiceError, file_options, progress, tensors_of
from perbit.report import rd


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `perbit rd`."""
    file_options(command, optional=True)
    command.add_argument("--gennorm", type=float, metavar="BETA", help="samples of GenNorm(BETA) instead of a file")
    command.add_argument("--n", type=int, default=1 << 18, help="how many samples (default 262144)")
    command.add_argument("--specs", nargs="+", metavar="SPEC", help='e.g. "topk(?) | fp16"; the ? takes many values')
    command.add_argument("--m", type=float, default=2.0, help="the exponent of the weighted error (default 2)")
    command.add_argument("-o", "--output", type=Path, metavar="DIR", help="write rd_NAME.json and rd_NAME.png here")


def run(options: argparse.Namespace) -> int:
    """Measure, write, print."""
    source, label = _rd_source(options)
    specs = options.specs or rd.DEFAULT_SPECS
    curves = []
    for curve in rd.sweep(source, specs, options.m):
        curves.append(curve)
        progress(options, f"{len(curves)} of {len(specs)} specs measured, last {curve.spec}")
    progress(options, "computing the R(D) bound ...")
    table = rd.summary(source, curves)
    progress(options, "")
    result = {
        "source": {"name": source.name, "n": source.values.size, "beta": source.beta, "zero_mass": source.zero_mass},
        "m": options.m,
        "decibels_at_rates": table,
        "curves": [asdict(curve) for curve in curves],
    }
    if options.output:
        from perbit.report import rd_picture

        files.write_json(options.output / f"rd_{label}.json", result)
        rd_picture.draw(source, curves, options.m, options.output / f"rd_{label}.png")
    if options.json:
        print_json(result)
    else:
        _print_rd(source, table, curves)
    return EXIT_OK


def _rd_source(options: argparse.Namespace) -> tuple[rd.RateSource, str]:
    if (options.input is None) == (options.gennorm is None):
        raise ChoiceError("give a file or --gennorm BETA")
    if options.gennorm is not None:
        if not 0.1 <= options.gennorm <= 10:
            raise ChoiceError(f"--gennorm takes a shape from 0.1 to 10, got {options.gennorm:g}")
        if not 100 <= options.n <= 1 << 26:
            raise ChoiceError(f"--n takes a number of samples from 100 to 2^26, got {options.n}")
        return rd.RateSource.gennorm(options.gennorm, options.n), f"gennorm_{options.gennorm:g}"
    tensors = {name: x for name, x in tensors_of(options.input, options.layer).items() if np.any(x != 0)}
    if not tensors:
        raise ChoiceError(f"{options.input}: all values are zero, there is nothing to code")
    name = max(tensors, key=lambda name: tensors[name].size)
    label = f"{options.input.stem}_{name}" if name != options.input.stem else name
    among = f", the largest of {len(tensors)} tensors" if len(tensors) > 1 else ""
    return rd.RateSource.of(f"{options.input.stem}: {name}{among}", tensors[name]), label


def _print_rd(source: rd.RateSource, table: dict[str, dict[float, float | None]], curves: list[rd.RateCurve]) -> None:
    print(
        f"{source.name}: fitted beta {source.beta:.3g}, {source.zero_mass:.1%} exact zeros, {source.values.size:,} values"
    )
    width = max(map(len, (*table, *(point.spec for curve in curves for point in curve.points)))) + 2
    rates = list(table["bound R(D)"])
    print(f"\n{'error in dB at bits per value':<{width}}" + "".join(f"{rate:>8g}" for rate in rates))
    for name, row in table.items():
        print(f"{name:<{width}}" + "".join(f"{'' if row[r] is None else format(row[r], '.2f'):>8}" for r in rates))
    print(f"\n{'every point':<{width}}{'bits/value':>11}{'MSE dB':>9}{'weighted':>10}")
    for point in (point for curve in curves for point in curve.points):
        print(f"{point.spec:<{width}}{point.bits_per_value:>11.3f}{point.mse_db:>9.2f}{point.weighted_db:>10.2f}")
