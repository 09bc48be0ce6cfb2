"""`perbit plan`: which tensor of a model gets which codec, and what it comes to in a real frame."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import perbit
from perbit import files
from perbit.commands.common import EXIT_OK, human_bytes, json_option, print_json, threads_option
from perbit.errors import SpecError
from perbit.plan import Plan


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a .safetensors, .npz or .npy file")
    parser.add_argument("spec", help='what tensors get by default, e.g. "topk(0.01) | qsgd(15) | rans"')
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="RULE=SPEC",
        help='other tensors, the first match wins: "embed*=nonzero | fp16", "dims:4 size:1e5..=topk(0.001)"',
    )
    parser.add_argument("--small", default="raw", metavar="SPEC", help="what small tensors get (default raw)")
    parser.add_argument("--small-below", type=int, default=1024, metavar="N", help="smaller is small (default 1024)")
    parser.add_argument("--flat-too", action="store_true", help="one-dimensional tensors are not small by themselves")
    parser.add_argument("--whole-model", action="store_true", help="one topk threshold for all tensors together")
    parser.add_argument("--seed", type=int, default=0, help="fixes every random choice (default 0)")
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    plan = Plan.of(
        options.spec,
        map(split_rule, options.rule),
        options.small,
        options.small_below,
        flat_is_small=not options.flat_too,
        whole_model=options.whole_model,
    )
    tensors = files.read_tensors(options.model)
    if isinstance(tensors, np.ndarray):
        tensors = {options.model.stem: tensors}
    report = describe(tensors, plan, options.seed)
    if options.json:
        print_json(report)
    else:
        print(as_text(report))
    return EXIT_OK


def split_rule(text: str) -> tuple[str, str]:
    """The rule and its spec; a spec may hold further equals signs.

    >>> split_rule("fc*=topk(0.1, positions=bitmap)")
    ('fc*', 'topk(0.1, positions=bitmap)')
    """
    rule, equals, spec = text.partition("=")
    if not (equals and rule.strip() and spec.strip()):
        raise SpecError(f'{text!r} is no rule; write RULE=SPEC, e.g. "conv*=topk(0.01) | fp16"')
    return rule.strip(), spec.strip()


def describe(tensors: dict[str, Any], plan: Plan, seed: int = 0) -> dict[str, Any]:
    """Every tensor with its codec, bytes and ratio, from the frame the plan makes; the rows and the header add up to it."""
    info = perbit.inspect(perbit.dumps(tensors, plan, seed=seed), max_values=sum(a.size for a in tensors.values()))
    rows = [
        {
            "name": tensor["name"],
            "dtype": tensor["dtype"],
            "shape": tensor["shape"],
            "spec": tensor["spec"],
            "input_bytes": tensors[tensor["name"]].nbytes,
            "n_bytes": tensor["n_bytes"],
            "ratio": _ratio(tensors[tensor["name"]].nbytes, tensor["n_bytes"]),
        }
        for tensor in info["tensors"]
    ]
    input_bytes = sum(row["input_bytes"] for row in rows)
    return {
        "tensors": rows,
        "header_bytes": info["n_bytes"] - sum(row["n_bytes"] for row in rows),
        "input_bytes": input_bytes,
        "n_bytes": info["n_bytes"],
        "ratio": _ratio(input_bytes, info["n_bytes"]),
    }


def _ratio(before: int, after: int) -> float | None:
    return before / after if after else None


def as_text(report: dict[str, Any]) -> str:
    """A table for people."""
    rows = [
        _row(row["name"], "×".join(map(str, row["shape"])) or "scalar", row["spec"], row) for row in report["tensors"]
    ]
    header = report["header_bytes"]
    rows.append(("(header and checksum)", "", "", "", human_bytes(header), ""))
    rows.append(_row("total", "", "", report))
    head = ("tensor", "shape", "codec", "from", "to", "ratio")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(_line(row, widths) for row in (head, *rows))


def _row(name: str, shape: str, spec: str, numbers: dict[str, Any]) -> tuple[str, ...]:
    ratio = f"{numbers['ratio']:.1f}" if numbers["ratio"] is not None else ""
    return name, shape, spec, human_bytes(numbers["input_bytes"]), human_bytes(numbers["n_bytes"]), ratio


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    """Words to the left, numbers to the right."""
    cells = [
        cell.ljust(width) if column < 3 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
