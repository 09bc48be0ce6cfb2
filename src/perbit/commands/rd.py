"""`perbit rd`: distortion against real bits of many specs, as a table, JSON and a picture."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from perbit import files
from perbit.commands.common import EXIT_OK, check_free, force_option, print_json
from perbit.commands.selection import ChoiceError, file_options, progress, tensors_of
from perbit.printing import printable
from perbit.report import rd, rd_model

PEERS = Path("results/rd_peers.json")


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `perbit rd`."""
    file_options(command, optional=True)
    command.add_argument("--gennorm", type=float, metavar="BETA", help="samples of GenNorm(BETA) instead of a file")
    command.add_argument("--n", type=int, default=1 << 18, help="how many samples (default 262144)")
    command.add_argument("--specs", nargs="+", metavar="SPEC", help='e.g. "topk(?) | fp16"; the ? takes many values')
    command.add_argument(
        "--whole-model",
        action="store_true",
        help=f"all tensors with {rd_model.LEAST_VALUES} values or more in one message, with one value for the ?",
    )
    command.add_argument(
        "--peers",
        type=Path,
        metavar="JSON",
        help=f"points of another codec to draw beside a whole model (default {PEERS}, where it knows the file)",
    )
    command.add_argument("--m", type=float, default=2.0, help="the exponent of the weighted error (default 2)")
    command.add_argument("-o", "--output", type=Path, metavar="DIR", help="write rd_NAME.json and rd_NAME.png here")
    force_option(command)


def run(options: argparse.Namespace) -> int:
    """Measure, write, print."""
    if options.whole_model:
        return _run_model(options)
    if options.peers:
        raise ChoiceError("--peers goes with --whole-model: its points are those of whole models")
    source, label = _rd_source(options)
    _check_output(options, label)
    specs = options.specs or rd.DEFAULT_SPECS
    curves = _watched(options, rd.sweep(source, specs, options.m), len(specs))
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


def _check_output(options: argparse.Namespace, label: str) -> None:
    for suffix in (".json", ".png") if options.output else ():
        check_free(options.output / f"rd_{label}{suffix}", options.force)


def _run_model(options: argparse.Namespace) -> int:
    source, peers = _model_source(options), _peers(options)
    _check_output(options, source.name)
    specs = options.specs or rd_model.MODEL_SPECS
    curves = _watched(options, rd_model.sweep(source, specs), len(specs))
    progress(options, "")
    table = rd_model.summary([*curves, *peers])
    result = {
        "source": {"name": source.name, "n": source.values.size, "tensors": len(source.tensors)},
        "bits_at_decibels": table,
        "curves": [asdict(curve) for curve in (*curves, *peers)],
    }
    if options.output:
        from perbit.report import rd_picture

        files.write_json(options.output / f"rd_{source.name}.json", result)
        rd_picture.draw_model(source, curves, peers, options.output / f"rd_{source.name}.png")
    if options.json:
        print_json(result)
    else:
        print(f"{source.name}: {source.values.size:,} values in {len(source.tensors)} tensors")
        _print_table("bits per value at error in dB", table, ".4f")
    return EXIT_OK


def _watched(options: argparse.Namespace, curves: Iterator[rd.RateCurve], count: int) -> list[rd.RateCurve]:
    done = []
    for curve in curves:
        done.append(curve)
        progress(options, f"{len(done)} of {count} specs measured, last {curve.spec}")
    return done


def _model_source(options: argparse.Namespace) -> rd_model.ModelSource:
    if options.input is None or options.gennorm is not None:
        raise ChoiceError("--whole-model takes the file of a model, and no --gennorm")
    source = rd_model.ModelSource.of(options.input.stem, tensors_of(options.input, options.layer))
    if not any(np.any(x) for x in source.tensors.values()):
        raise ChoiceError(f"{options.input}: no tensor with {rd_model.LEAST_VALUES} values or more has any but zeros")
    return source


def _peers(options: argparse.Namespace) -> list[rd.RateCurve]:
    """The points of another codec for this very file. Those looked for by default need not be there."""
    path = options.peers or PEERS
    if not options.peers and (options.layer or not path.is_file()):
        return []
    if options.layer:
        raise ChoiceError("--peers knows whole models only: leave --layer out")
    curves = rd_model.peer_curves(path, hashlib.sha256(files.read_bytes(options.input)).hexdigest())
    if options.peers and not curves:
        raise ChoiceError(f"{path} has no points of {options.input}: python benchmarks/rd_peers.py {options.input}")
    return curves


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
    in_a_folder = re.sub(r"[^\w.-]+", "_", label)  # a name may hold slashes, and comes from a file of others
    return rd.RateSource.of(f"{options.input.stem}: {printable(name)}{among}", tensors[name]), in_a_folder


def _print_rd(source: rd.RateSource, table: dict[str, dict[float, float | None]], curves: list[rd.RateCurve]) -> None:
    print(
        f"{source.name}: fitted beta {source.beta:.3g}, {source.zero_mass:.1%} exact zeros, {source.values.size:,} values"
    )
    width = max(len(point.spec) for curve in curves for point in curve.points) + 2
    _print_table("error in dB at bits per value", table, ".2f", width)
    print(f"\n{'every point':<{width}}{'bits/value':>11}{'MSE dB':>9}{'weighted':>10}")
    for point in (point for curve in curves for point in curve.points):
        print(f"{point.spec:<{width}}{point.bits_per_value:>11.3f}{point.mse_db:>9.2f}{point.weighted_db or 0:>10.2f}")


def _print_table(title: str, table: dict[str, dict[float, float | None]], form: str, least_width: int = 0) -> None:
    width = max(least_width, *(len(name) + 2 for name in (title, *table)))
    columns = list(next(iter(table.values())))
    print(f"\n{title:<{width}}" + "".join(f"{column:>8g}" for column in columns))
    for name, row in table.items():
        print(f"{name:<{width}}" + "".join(f"{'' if (x := row[c]) is None else format(x, form):>8}" for c in columns))
