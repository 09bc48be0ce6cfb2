"""`perbit budget`: the open parameter of a spec for which the frame fills a budget."""

from __future__ import annotations

import argparse
from pathlib import Path

from perbit import files
from perbit.commands.common import EXIT_OK, json_option, print_json
from perbit.commands.planning import exception_options, split_rule
from perbit.plan.budget import fit_budget


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `perbit budget`."""
    command.add_argument("input", type=Path, help="a .npy, .npz or .safetensors file")
    command.add_argument("spec", help='e.g. "topk(?) | qsgd(15) | rans"')
    size = command.add_mutually_exclusive_group(required=True)
    size.add_argument("--bits", type=int, help="the budget in bits")
    size.add_argument("--bytes", type=int, help="the budget in bytes")
    command.add_argument("--per-tensor", action="store_true", help="share the budget by one threshold over all tensors")
    exception_options(command)
    command.add_argument("--at-least", type=float, default=0.99, help="the share to fill (default 0.99)")
    command.add_argument("--seed", type=int, default=0, help="fixes every random choice (default 0)")
    command.add_argument("-o", "--output", type=Path, help="also write the frame")
    json_option(command)


def run(options: argparse.Namespace) -> int:
    """Search, write the frame if asked, print what to paste."""
    found = fit_budget(
        files.read_tensors(options.input),
        options.spec,
        n_bits=options.bits,
        n_bytes=options.bytes,
        per_tensor=options.per_tensor,
        rules=map(split_rule, options.rule),
        small=options.small,
        at_least=options.at_least,
        seed=options.seed,
    )
    if options.output:
        files.write_atomically(options.output, lambda file: file.write(found.frame))
    if options.json:
        keys = ("spec", "value", "n_bytes", "n_bits", "budget_bytes", "filled", "n_encodes", "plan_text")
        print_json({key: getattr(found, key) for key in keys})
        return EXIT_OK
    print(found.plan_text)
    print(
        f"{found.n_bits:,} bits in {found.n_bytes:,} bytes, {found.filled:.2%} of the budget, found with {found.n_encodes} frames"
    )
    return EXIT_OK
