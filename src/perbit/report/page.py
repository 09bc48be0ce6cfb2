"""report.html: one file with everything in it, readable offline, light or dark, on a phone or a laptop, on paper and without scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from perbit.files import write_atomically
from perbit.report import charting, pieces, plots, through_training
from perbit.report.books import RunBook
from perbit.report.curves import curves
from perbit.report.plots import Figure
from perbit.report.series import page_data
from perbit.sim.compare import summary
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.summary import Row
from perbit.sim.federated.runs import Outcome

SCRIPTS = ("controls.js", "charts.js", "start.js")
NOTES = (
    "MB are 10⁶ bytes of real frames, all clients, one run; {seeds}. Bits per parameter are those one client sends up in a round. "
    "Per-bit accuracy is the mean accuracy while the first bits were sent up, as many as every method sent (the area under accuracy against bits). "
    "Encode and decode are medians measured for one message. Transfer time is modelled from bytes, speed and {latency:g} ms of latency; "
    "compute, encoding and decoding are measured."
)


def write(
    comparison: Comparison,
    outcomes: Sequence[Outcome],
    folders: Sequence[Path],
    output: Path,
    more: Sequence[Figure] = (),
) -> Path:
    """The page and its pictures as files, `more` pictures at its end; the path of the page."""
    rows = summary.rows(comparison, outcomes, folders)
    found = curves(comparison, outcomes, [RunBook.read(folder) for folder in folders])
    drawn = plots.figures(found, rows, comparison.links, outcomes)
    drawn += [*through_training.figures(outcomes, folders), *more]
    for figure in drawn:
        _put(output / f"{figure.name}.png", figure.png)
    page = output / "report.html"
    data = page_data(comparison, found, rows, outcomes) if drawn else None
    _put(page, html(comparison, outcomes, rows, drawn, data).encode())
    return page


def html(
    comparison: Comparison,
    outcomes: Sequence[Outcome],
    rows: Sequence[Row],
    drawn: Sequence[Figure],
    data: dict[str, Any] | None,
) -> str:
    """The text of the page; without `data` there is nothing to draw."""
    n_seeds = len(comparison.seeds)
    seeds = f"means over {n_seeds} seeds, ± is their standard deviation" if n_seeds > 1 else "a single seed"
    return Template(_web("page.html")).substitute(
        title=escape(comparison.title),
        subtitle=escape(pieces.subtitle(comparison, outcomes, len(rows))),
        style=_web("style.css"),
        advice=pieces.advice(rows),
        table=pieces.table(rows),
        notes=escape(NOTES.format(seeds=seeds, latency=comparison.links[0].latency_ms)),
        charts=pieces.charts({figure.name: figure for figure in drawn}, comparison.links) if drawn else "",
        legend=pieces.legend(rows) if drawn else "",
        methods="".join(map(pieces.method, rows)),
        settings=pieces.settings(comparison),
        data="" if data is None else _script("application/json", "data", _embedded(data)),
        charting="" if data is None else _script("text/plain", "charting", charting.packed()),
        script="\n".join(map(_web, SCRIPTS)),
    )


def _script(kind: str, name: str, text: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>'


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in, whatever names it holds."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _web(name: str) -> str:
    return resources.files("perbit.report").joinpath("web", name).read_text("utf-8")


def _put(path: Path, data: bytes) -> None:
    write_atomically(path, lambda file: file.write(data))
