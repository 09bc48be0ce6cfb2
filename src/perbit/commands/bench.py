"""`perbit bench`: kernels and codecs as ratios to memcpy and to their peers."""

from __future__ import annotations

import argparse
from pathlib import Path

import perbit
from perbit import files
from perbit.commands.common import EXIT_OK, check_free, force_option, json_option, positive, print_json, threads_option


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n", type=positive, default=16_000_000, help="values in the large arrays (default 16 million)"
    )
    parser.add_argument("--repeats", type=positive, default=7, help="the best of this many runs counts")
    parser.add_argument("--only", help="run only the rows whose name contains this")
    parser.add_argument("-o", "--output", type=Path, help="also write the rows to this JSON file")
    force_option(parser)
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    import perbit.commands.benchmarks as bench

    perbit.set_threads(options.threads)
    if options.output:
        check_free(options.output, options.force)
    rows = bench.run(options.n, options.repeats, options.only, progress=not options.json)
    if options.output:
        files.write_json(options.output, rows)
    if options.json:
        print_json(rows)
    return EXIT_OK
