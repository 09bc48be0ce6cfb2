"""What a set of runs looks like: a table for the terminal, and a figure of excess loss against rounds and against bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perbit.report.style import picture

Result = dict[str, Any]  # Ledger.to_json()


def table(results: Sequence[Result]) -> str:
    """One line an algorithm, aligned."""
    head = ["algorithm", "excess loss", "log10", "bytes up", "bytes down", "headers", "resets"]
    rows = [head, *map(_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(result: Result) -> list[str]:
    totals, excess = result["totals"], result["excess"][-1]
    sent = totals["bytes_up"] + totals["bytes_down"]
    good = excess is not None and excess > 0
    return [
        result["algorithm"],
        "diverged" if excess is None else f"{excess:.3e}",
        f"{math.log10(excess):.2f}" if good else "",
        f"{totals['bytes_up']:,}",
        f"{totals['bytes_down']:,}",
        f"{100 * totals['header_bytes'] / sent:.0f} %" if sent else "",
        str(totals["resets"]),
    ]


def plot(results: Sequence[Result], path: Path, title: str) -> None:
    """Excess loss against rounds and against bytes, as PNG."""
    with picture(path, 1, 2, width=11, height=4.2) as drawing:
        by_rounds, by_bytes = drawing.axes
        for result in results:
            columns = zip(result["rounds"], result["bytes"], result["excess"], strict=True)
            points = [point for point in columns if point[2]]
            rounds, sent, excess = ([point[i] for point in points] for i in range(3))
            by_rounds.plot(rounds, excess, label=result["algorithm"], linewidth=1.2)
            by_bytes.plot(sent, excess, label=result["algorithm"], linewidth=1.2)
        for axis, label in ((by_rounds, "rounds"), (by_bytes, "bytes sent, both directions")):
            axis.set(xlabel=label, ylabel="excess loss", yscale="log")
        by_bytes.set_xscale("log")
        by_rounds.legend()
        drawing.suptitle(title)
