"""`perbit codecs`: every codec, its parameters, what it takes and gives."""

from __future__ import annotations

import argparse
from typing import Any

import perbit
from perbit.coding import registry
from perbit.coding.listing import about, arguments
from perbit.coding.spec import signature
from perbit.commands.common import EXIT_OK, json_option, print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show one codec in full")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    found = registry.classes()
    if options.name:
        cls = found.get(options.name) or type(perbit.codec(options.name))  # whose error names the closest match
        found = {cls.name: cls}
    rows: list[dict[str, Any]] = [
        {"name": cls.name, "call": signature(cls), "takes": cls.takes, "gives": cls.gives, "about": about(cls)}
        | ({"parameters": arguments(cls), "examples": list(cls.examples)} if options.name else {})
        for cls in found.values()
    ]
    if options.json:
        print_json(rows)
        return EXIT_OK
    order = {"floats": 0, "symbols": 1, "bytes": 2, "positions": 3}
    for row in sorted(rows, key=lambda row: (order[row["takes"]], row["name"])):
        print(f"{row['call']}\n    {row['takes']} → {row['gives']}: {row['about']}")
        for name, said in row.get("parameters", {}).items():
            print(f"    {name}: {said}")
        if row.get("examples"):
            print("    examples: " + "   ".join(row["examples"]))
    return EXIT_OK
