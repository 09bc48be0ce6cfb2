"""Where experiments leave their outcomes: JSON beside PNG, and one sentence on the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perbit import files

RESULTS = Path("results")


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON, whole or not at all; the folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
    files.write_atomically(path, lambda file: file.write(data))


def verdict(reproduced: bool, claim: str, why: str) -> str:
    """The sentence an experiment ends with.

    >>> verdict(True, "eq. (15)", "it is within 4 % of the optimum")
    'REPRODUCED: eq. (15): it is within 4 % of the optimum'
    """
    return f"{'REPRODUCED' if reproduced else 'NOT REPRODUCED'}: {claim}: {why}"
