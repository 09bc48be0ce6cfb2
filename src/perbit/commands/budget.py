"""`perbit budget`: the open parameter of a spec for which the frame fills a budget."""

from __future__ import annotations

import argparse
from pathlib import Path

from perbit import files
from perbit.commands.common import EXIT_OK, as_json, check_free, force_option, json_option, say
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
    command.add_argument("-o", "--output", type=Path, help="also write the frame; -: standard output")
    force_option(command)
    json_option(command)


def run(options: argparse.Namespace) -> int:
    """Search, write the frame if asked, print what to paste."""
    if options.output:
        check_free(options.output, options.force)
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
    keys = ("spec", "value", "n_bytes", "n_bits", "budget_bytes", "filled", "n_encodes", "plan_text")
    filled = f"{found.filled:.2%} of the budget, found with {found.n_encodes} frames"
    said = f"{found.plan_text}\n{found.n_bits:,} bits in {found.n_bytes:,} bytes, {filled}"
    say(as_json({key: getattr(found, key) for key in keys}) if options.json else said, options.output)
    return EXIT_OK
