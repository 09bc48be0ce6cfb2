"""What is seen while a comparison runs: a live table where rich and a terminal are, lines of text elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from perbit.commands.common import human_bytes
from perbit.sim.compare.pool import Report
from perbit.sim.federated.settings import Task

SECONDS_BETWEEN_LINES = 5.0
BAR = 20


@dataclass
class ProgressRow:
    """One run as it is shown."""

    name: str
    began: float = 0.0
    first: int = 0  # rounds that were done when this process began
    report: Report | None = None

    def seconds_left(self, now: float) -> float | None:
        if self.report is None or self.report.done == self.first:
            return None
        return (now - self.began) / (self.report.done - self.first) * (self.report.rounds - self.report.done)


class Display:
    """Call it with reports; use it as a context."""

    def __init__(self, names: Sequence[str], task: Task, quiet: bool = False, until: int | None = None) -> None:
        self.rows, self.quiet = [ProgressRow(name) for name in names], quiet
        self.rounds, self.metric = until or task.rounds, task.metric
        self.live, self.last_line, self.n_shown = None if quiet else _live(), 0.0, 0
        self.width = max(map(len, names))

    def __enter__(self) -> Display:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.update(self.table())
            self.live.stop()

    def __call__(self, report: Report) -> None:
        row, now = self.rows[report.job], time.monotonic()
        if row.report is None:
            row.began, row.first = now, report.done
        row.report = report
        if self.live:
            self.live.update(self.table())
        elif not self.quiet and (report.done == report.rounds or now - self.last_line >= SECONDS_BETWEEN_LINES):
            self.last_line = now
            print(self.line(row, now), file=sys.stderr, flush=True)

    def line(self, row: ProgressRow, now: float) -> str:
        cells = self.cells(row, now)
        return f"{row.name:<{self.width}}  round {cells[0]:>7}  {cells[1]:>7}  {cells[2]:>9} sent up  {cells[3]}"

    def cells(self, row: ProgressRow, now: float) -> tuple[str, str, str, str]:
        """Round, accuracy, sent, time left."""
        if row.report is None:
            return f"0/{self.rounds}", "", "", "waiting"
        report, left = row.report, row.seconds_left(now)
        said = "done" if report.done == report.rounds else "" if left is None else f"{_duration(left)} left"
        reached = f"{report.accuracy:.4g}" if self.metric else f"{report.accuracy:.1%}"
        return f"{report.done}/{report.rounds}", reached, human_bytes(report.n_bytes), said

    def table(self) -> Any:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for head in ("method", "", "round", self.metric or "accuracy", "sent up"):
            table.add_column(head, justify="left" if head in ("method", "") else "right")
        table.add_column("", min_width=12)
        for row in self.rows:
            done = row.report.done / row.report.rounds if row.report else 0.0
            filled = round(done * BAR)
            bar = f"[green]{'━' * filled}[/][bright_black]{'━' * (BAR - filled)}[/]"
            table.add_row(row.name, bar, *self.cells(row, time.monotonic()))
        return table


def _live() -> Any:
    """rich's live display, if it can be had and somebody looks."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    return Live(console=Console(stderr=True), refresh_per_second=4)


def _duration(seconds: float) -> str:
    """
    >>> _duration(42.4), _duration(3700)
    ('42 s', '62 min')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
