"""`perbit plan`: which tensor of a model gets which codec, and what it comes to in a real frame."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import perbit
from perbit import files
from perbit.commands.common import (
    EXIT_OK,
    human_bytes,
    json_option,
    print_json,
    tensor_label,
    threads_option,
)
from perbit.commands.planning import encoded, plan_of, plan_options
from perbit.plan.plan import Plan
from perbit.printing import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a .safetensors, .npz or .npy file")
    parser.add_argument("spec", help='what large tensors get, e.g. "topk(0.01) | qsgd(15) | rans"')
    plan_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="fixes every random choice (default 0)")
    threads_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    perbit.set_threads(options.threads)
    report = describe(files.read_tensors(options.model), plan_of(options), options.seed, options.model.stem)
    if options.json:
        print_json(report)
    else:
        print(as_text(report))
    return EXIT_OK


def describe(value: Any, plan: Plan, seed: int = 0, name: str = "") -> dict[str, Any]:
    """Every tensor with its codec, bytes and ratio, from the frame `perbit encode` would write; the rows and the header add up to it.

    Args:
        value: the tensors of a model, or a lone array.
        plan: what they get.
        seed: fixes every random choice.
        name: what the row of a lone array is called.
    """
    tensors = {name: value} if isinstance(value, np.ndarray) else value
    info = perbit.inspect(encoded(value, plan, seed, name), max_values=sum(a.size for a in tensors.values()))
    overhead = info["header_bytes"] + info["checksum_bytes"]
    held = info.get("tensors", [info | {"name": name, "n_bytes": info["n_bytes"] - overhead}])
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
        for tensor in held
    ]
    input_bytes = sum(row["input_bytes"] for row in rows)
    return {
        "tensors": rows,
        "header_bytes": overhead,
        "input_bytes": input_bytes,
        "n_bytes": info["n_bytes"],
        "ratio": _ratio(input_bytes, info["n_bytes"]),
    }


def _ratio(before: int, after: int) -> float | None:
    return before / after if after else None


def as_text(report: dict[str, Any]) -> str:
    """A table for people."""
    rows = [
        _row(tensor_label(row["name"]), "×".join(map(str, row["shape"])) or "scalar", printable(row["spec"]), row)
        for row in report["tensors"]
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
