"""The licences of everything perbit is installed with, as docs/licences.md: `make licences`.

Reads the metadata of the packages that requirements/ pins, as they are installed here.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "licences.md"
NEEDED = {"numpy", "zstandard"}  # by perbit itself; everything else is an extra
PARTS = {
    "run": "Extras `sim` and `report`",
    "build": "To build",
    "dev": "To test; Flower and NVFlare with what they need",
}


def pinned(part: str) -> list[str]:
    """The packages of the pinned requirements of all platforms."""
    lines = [line for path in sorted(ROOT.glob(f"requirements/*/{part}.txt")) for line in path.read_text().splitlines()]
    return sorted({line.split("==")[0] for line in lines if not line.startswith("#")})


def licence(name: str) -> str:
    """What the package says of itself: an SPDX expression, a line of text, or a classifier."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [
        text.split(" :: ")[-1] for text in about.get_all("Classifier") or () if text.startswith("License ::")
    ]
    text = (about.get("License") or "").strip()
    if text and len(text) <= 60 and "\n" not in text:
        return text
    return ", ".join(classifiers) or (re.split(r"[\n.]", text)[0][:60] if text else "not stated")


def row(name: str) -> str:
    return f"| {name} | {metadata.version(name)} | {licence(name).replace('|', '/')} |"


def table(names: list[str]) -> list[str]:
    return ["| Package | Version | Licence |", "|---|---|---|", *map(row, names), ""]


def main() -> int:
    run = pinned("run")
    lines = [
        "# Licences",
        "",
        "perbit is under Apache-2.0. These are the packages that its pinned installs bring, with the licence",
        "",
    ]
    lines[-1:] = ["that each states for itself. Made by `make licences`; do not edit.", "", "## Needed by perbit", ""]
    lines += [*table(sorted(NEEDED)), f"## {PARTS['run']}", "", *table(sorted({*run, "torch"} - NEEDED))]
    for part in ("build", "dev"):
        lines += [f"## {PARTS[part]}", "", *table(pinned(part))]
    TARGET.write_text("\n".join(lines).rstrip() + "\n")
    print(f"{TARGET}: {sum(line.startswith('| ') for line in lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
