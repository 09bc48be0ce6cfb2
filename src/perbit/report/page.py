"""report.html: one file with everything in it, readable offline, light or dark, on a phone or a laptop."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from perbit.files import write_atomically
from perbit.report import plots
from perbit.report.curves import curves
from perbit.report.plots import Figure
from perbit.sim.compare import recipe, summary
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.summary import Row
from perbit.sim.federated.runs import Outcome

HEAD = (*summary.HEAD[:4], "bits / parameter / round", "× less than float32", "encode ms", "decode ms")
NOTES = (
    "MB are 10⁶ bytes of real frames, all clients, one run; {seeds}. Bits per parameter are those one client sends up in a round. "
    "Encode and decode are medians measured for one message. In the plots, transfer time is modelled from bytes, "
    "speed and {latency:g} ms of latency; compute, encoding and decoding are measured."
)


def write(comparison: Comparison, outcomes: Sequence[Outcome], folders: Sequence[Path], output: Path) -> Path:
    """The page and its figures as files; the path of the page."""
    rows = summary.rows(comparison, outcomes, folders)
    drawn = plots.figures(curves(comparison, outcomes, folders), comparison.links, outcomes)
    for figure in drawn:
        _put(output / f"{figure.name}.png", figure.light)
    page = output / "report.html"
    _put(page, html(comparison, outcomes, rows, drawn).encode())
    return page


def html(comparison: Comparison, outcomes: Sequence[Outcome], rows: Sequence[Row], drawn: Sequence[Figure]) -> str:
    """The text of the page."""
    task, n_seeds = comparison.task, len(comparison.seeds)
    seeds = f"means over {n_seeds} seeds, ± is their standard deviation" if n_seeds > 1 else "a single seed"
    template = Template(resources.files("perbit.report").joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        title=escape(comparison.title),
        subtitle=escape(
            f"{task.model} with {outcomes[0]['n_parameters']:,} parameters on {task.data}, {task.rounds} rounds, "
            f"{task.present} of {task.clients} clients a round, {len(rows)} methods, {n_seeds} seed{'s' * (n_seeds > 1)}"
        ),
        advice=escape(summary.advice(rows)),
        grounds="".join(f'<p class="soft">{escape(line)}</p>' for line in summary.grounds(rows)),
        table=_table(rows),
        notes=escape(NOTES.format(seeds=seeds, latency=comparison.links[0].latency_ms)),
        figures="".join(map(_figure, drawn)),
        specs="".join(map(_spec, rows)),
        settings="".join(f"<dt>{key}</dt><dd>{escape(str(value))}</dd>" for key, value in asdict(task).items()),
    )


def _table(rows: Sequence[Row]) -> str:
    colours, best = plots.colours([row.method for row in rows]), summary.recommended(rows)
    lines = []
    for row, colour in zip(rows, colours, strict=True):
        name, *numbers = map(escape, summary.cells(row))
        mark = f'<span class="swatch" style="background:{colour}"></span>{name}'
        cells = "".join(f"<td>{cell}</td>" for cell in (mark, *numbers))
        kind = ' class="best"' if row is best else ""
        lines.append(f"<tr{kind}>{cells}</tr>")
    head = "".join(f"<th>{escape(cell)}</th>" for cell in (*summary.head(rows)[:2], *HEAD[2:]))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _figure(figure: Figure) -> str:
    light, dark = (f"data:image/png;base64,{b64encode(png).decode()}" for png in (figure.light, figure.dark))
    return (
        f'<figure class="card" id="{figure.name}"><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(figure.caption)}"></picture><figcaption>{escape(figure.caption)}</figcaption></figure>'
    )


def _spec(row: Row) -> str:
    method = row.method
    lines = [("up", method.up_text), *((f"up, {rule}", spec) for rule, spec in method.rules.items())]
    lines += [("down", method.down_text)] if method.down_text != "raw" else []
    shown = "".join(
        f'<div class="spec"><span class="soft">{escape(way)}</span><code>{escape(spec)}</code></div>'
        for way, spec in lines
    )
    buttons = "".join(
        f'<button type="button" data-copy="{escape(code)}">copy {where}</button>'
        for where, code in recipe.everything(method).items()
    )
    said = {key: value for key, value in recipe.keys(method).items() if key not in ("protocol", "up", "down", "rules")}
    options = "".join(f", {key} = {value}" for key, value in said.items())
    what = f"<span class=soft>{escape(method.protocol + options)}</span>"
    return f'<li><strong>{escape(method.name)}</strong> {what}{shown}<div class="spec">{buttons}</div></li>'


def _put(path: Path, data: bytes) -> None:
    write_atomically(path, lambda file: file.write(data))
