"""`perbit fit`, `perbit rd` and `perbit budget`: options in, tables and files out."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit import files
from perbit.errors import PerbitError


class ChoiceError(PerbitError):
    """Options that do not select anything, or contradict each other."""


def add(commands: Any) -> None:
    """Add the three commands to the parser."""
    command = commands.add_parser("fit", help="fit normal, Laplace and GenNorm to every tensor of a file")
    _file_options(command)
    command.add_argument("--method", choices=("moments", "mle"), default="moments", help="how GenNorm is fitted")
    command.add_argument("--plot", type=Path, metavar="OUT.png", help="draw histogram, distances and kurtosis")
    command.set_defaults(run=run_fit)

    command = commands.add_parser("rd", help="distortion against real bits of many specs, beside the R(D) bound")
    _file_options(command, optional=True)
    command.add_argument("--gennorm", type=float, metavar="BETA", help="samples of GenNorm(BETA) instead of a file")
    command.add_argument("--n", type=int, default=1 << 18, help="how many samples (default 262144)")
    command.add_argument("--specs", nargs="+", metavar="SPEC", help='e.g. "topk(?) | fp16"; the ? takes many values')
    command.add_argument("--m", type=float, default=2.0, help="the exponent of the weighted error (default 2)")
    command.add_argument("-o", "--output", type=Path, metavar="DIR", help="write rd_NAME.json and rd_NAME.png here")
    command.set_defaults(run=run_rd)

    command = commands.add_parser("budget", help="find the ? of a spec so that the frame fills a budget")
    command.add_argument("input", type=Path, help="a .npy, .npz or .safetensors file")
    command.add_argument("spec", help='e.g. "topk(?) | qsgd(15) | rans"')
    size = command.add_mutually_exclusive_group(required=True)
    size.add_argument("--bits", type=int, help="the budget in bits")
    size.add_argument("--bytes", type=int, help="the budget in bytes")
    command.add_argument("--per-tensor", action="store_true", help="share the budget by one threshold over all tensors")
    command.add_argument(
        "--small", metavar="SPEC", help="for tensors with one dimension or under 1024 values, e.g. raw"
    )
    command.add_argument("--at-least", type=float, default=0.99, help="the share to fill (default 0.99)")
    command.add_argument("--seed", type=int, default=0, help="fixes every random choice (default 0)")
    command.add_argument("-o", "--output", type=Path, help="also write the frame")
    command.add_argument("--json", action="store_true", help="print JSON for programs")
    command.set_defaults(run=run_budget)


def _file_options(command: argparse.ArgumentParser, optional: bool = False) -> None:
    command.add_argument("input", type=Path, nargs="?" if optional else None, help="a .npy, .npz or .safetensors file")
    command.add_argument("--layer", metavar="PATTERN", help="only tensors whose name matches, e.g. 'conv*'")
    command.add_argument("--json", action="store_true", help="print JSON for programs")


def _tensors(path: Path, pattern: str | None) -> dict[str, NDArray[Any]]:
    value = files.read_tensors(path)
    named = value if isinstance(value, dict) else {path.stem: value}
    chosen = {name: x for name, x in named.items() if pattern is None or fnmatchcase(name, pattern)}
    if not chosen:
        raise ChoiceError(f"no tensor of {path} matches {pattern!r}; it has {', '.join(named) or 'none'}")
    return chosen


def _progress(options: argparse.Namespace, text: str) -> None:
    """A line on stderr that the next one overwrites; silent where nobody watches."""
    if not options.json and sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def run_fit(options: argparse.Namespace) -> int:
    from perbit.report import fits

    tensors = _tensors(options.input, options.layer)
    width = max(8, max(map(len, tensors)) + 2)
    rows: list[fits.TensorFit] = []
    for name, x in tensors.items():
        _progress(options, f"fitting {name} ...")
        if (row := fits.fit_tensor(name, x, options.method)) is None:
            continue
        _progress(options, "")
        if not rows and not options.json:
            print(fits.table_line(None, width))
        rows.append(row)
        if not options.json:
            print(fits.table_line(row, width), flush=True)
    _progress(options, "")
    if not rows:
        raise ChoiceError(
            f"{options.input} has no tensor to fit: floats, at least {fits.FEWEST} of them not zero, not all equal"
        )
    if options.json:
        print(json.dumps([row.as_json() for row in rows], indent=2))
    else:
        skipped = len(tensors) - len(rows)
        print(
            f"distances in units of sigma, * the smallest{f'; {skipped} tensors have nothing to fit' if skipped else ''}"
        )
    if options.plot:
        from perbit.report import fit_picture

        largest = max(rows, key=lambda row: row.n)
        fit_picture.draw(rows, tensors[largest.name], largest, options.plot)
    return 0


def run_rd(options: argparse.Namespace) -> int:
    from perbit.report import rd

    source, label = _rd_source(options)
    specs = options.specs or rd.DEFAULT_SPECS
    curves = []
    for curve in rd.sweep(source, specs, options.m):
        curves.append(curve)
        _progress(options, f"{len(curves)} of {len(specs)} specs measured, last {curve.spec}")
    _progress(options, "computing the R(D) bound ...")
    table = rd.summary(source, curves)
    _progress(options, "")
    result = {
        "source": {"name": source.name, "n": source.values.size, "beta": source.beta, "zero_mass": source.zero_mass},
        "m": options.m,
        "decibels_at_rates": table,
        "curves": [asdict(curve) for curve in curves],
    }
    if options.output:
        from perbit.report import rd_picture, results

        results.write_json(options.output / f"rd_{label}.json", result)
        rd_picture.draw(source, curves, options.m, options.output / f"rd_{label}.png")
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        _print_rd(source, table, curves)
    return 0


def _rd_source(options: argparse.Namespace) -> tuple[Any, str]:
    from perbit.report.rd import Source

    if (options.input is None) == (options.gennorm is None):
        raise ChoiceError("give a file or --gennorm BETA")
    if options.gennorm is not None:
        if not 0.1 <= options.gennorm <= 10:
            raise ChoiceError(f"--gennorm takes a shape from 0.1 to 10, got {options.gennorm:g}")
        if not 100 <= options.n <= 1 << 26:
            raise ChoiceError(f"--n takes a number of samples from 100 to 2^26, got {options.n}")
        return Source.gennorm(options.gennorm, options.n), f"gennorm_{options.gennorm:g}"
    tensors = {name: x for name, x in _tensors(options.input, options.layer).items() if np.any(x != 0)}
    if not tensors:
        raise ChoiceError(f"{options.input}: all values are zero, there is nothing to code")
    name = max(tensors, key=lambda name: tensors[name].size)
    label = f"{options.input.stem}_{name}" if name != options.input.stem else name
    among = f", the largest of {len(tensors)} tensors" if len(tensors) > 1 else ""
    return Source.of(f"{options.input.stem}: {name}{among}", tensors[name]), label


def _print_rd(source: Any, table: dict[str, dict[float, float | None]], curves: list[Any]) -> None:
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


def run_budget(options: argparse.Namespace) -> int:
    from perbit.budget import fit_budget

    found = fit_budget(
        files.read_tensors(options.input),
        options.spec,
        n_bits=options.bits,
        n_bytes=options.bytes,
        per_tensor=options.per_tensor,
        small=options.small,
        at_least=options.at_least,
        seed=options.seed,
    )
    if options.output:
        files.write_atomically(options.output, lambda file: file.write(found.frame))
    if options.json:
        keys = ("spec", "value", "n_bytes", "n_bits", "budget_bytes", "filled", "n_encodes", "plan_text")
        print(json.dumps({key: getattr(found, key) for key in keys}, indent=2))
        return 0
    print(found.plan_text)
    print(
        f"{found.n_bits:,} bits in {found.n_bytes:,} bytes, {found.filled:.2%} of the budget, found with {found.n_encodes} frames"
    )
    return 0
