"""Where experiments leave their outcomes: JSON beside PNG, and one sentence on the screen."""

from __future__ import annotations

from pathlib import Path

from perbit.files import write_json

__all__ = ["RESULTS", "verdict", "write_json"]

RESULTS = Path("results")


def verdict(reproduced: bool, claim: str, why: str) -> str:
    """The sentence an experiment ends with.

    >>> verdict(True, "eq. (15)", "it is within 4 % of the optimum")
    'REPRODUCED: eq. (15): it is within 4 % of the optimum'
    """
    return f"{'REPRODUCED' if reproduced else 'NOT REPRODUCED'}: {claim}: {why}"
