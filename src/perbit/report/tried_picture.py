"""The picture of a search: every candidate that `perbit tune` tried, and the frontier of those that trained to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perbit.report.plots import COLOURS, GREY, Figure, drawn
from perbit.sim.compare.search import Tried
from perbit.sim.compare.summary import Row


def draw(tried: Sequence[Tried], float32: Row, budget_mb: float) -> Figure:
    """Accuracy against projected bytes; pale is what was left behind, at the accuracy it had then."""
    factor = 1 if float32.metric else 100
    done = [t for t in tried if t.fate == Tried.fate]
    left = [t for t in tried if t.fate != Tried.fate]

    def onto(axis: Any) -> None:
        axis.plot(*_points(left, factor), "o", color=GREY, alpha=0.5, markersize=4, label="left behind, when it was")
        axis.plot(*_points(done, factor), "o", color=COLOURS[1], label="trained to the end")
        front = _frontier(done)
        axis.step(*_points(front, factor), where="post", color=COLOURS[1], linewidth=1)
        axis.axhline(factor * float32.accuracy, color=GREY, linestyle="--", linewidth=1, label="float32")
        axis.axvline(budget_mb, color=COLOURS[0], linestyle=":", linewidth=1, label="budget")
        for t in front:
            axis.annotate(
                t.method.name,
                (t.projected_mb, factor * t.accuracy),
                fontsize=6,
                xytext=(4, -8),
                textcoords="offset points",
            )
        axis.set(xscale="log", xlabel="MB up, all clients (log scale)", ylabel=float32.metric or "test accuracy, %")

    return drawn("tried", f"What was tried for {budget_mb:g} MB up: accuracy against bytes", onto)


def _frontier(done: Sequence[Tried]) -> list[Tried]:
    """Cheapest first, each more accurate than all before it."""
    made: list[Tried] = []
    for t in sorted(done, key=lambda t: (t.projected_mb, -t.accuracy)):
        if not made or t.accuracy > made[-1].accuracy:
            made.append(t)
    return made


def _points(tried: Sequence[Tried], factor: float) -> tuple[list[float], list[float]]:
    return [t.projected_mb for t in tried], [factor * t.accuracy for t in tried]
