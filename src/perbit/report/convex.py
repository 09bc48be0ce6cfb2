"""What a set of runs looks like: a table for the terminal, and a figure of excess loss against rounds and against bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perbit.errors import PerbitError

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
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for result in results:
        points = [(x, b, e) for x, b, e in zip(result["rounds"], result["bytes"], result["excess"], strict=True) if e]
        rounds, sent, excess = ([p[i] for p in points] for i in range(3))
        axes[0].plot(rounds, excess, label=result["algorithm"], linewidth=1.2)
        axes[1].plot(sent, excess, label=result["algorithm"], linewidth=1.2)
    for axis, label in zip(axes, ("rounds", "bytes sent, both directions"), strict=True):
        axis.set(xlabel=label, ylabel="excess loss", yscale="log")
        axis.grid(alpha=0.3)
    axes[1].set_xscale("log")
    axes[0].legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def pyplot() -> Any:
    """matplotlib without a display, or a sentence about how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise PerbitError("figures need matplotlib: pip install 'perbit[report]', or use --no-plot") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
