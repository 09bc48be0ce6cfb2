"""Pieces of the page as HTML: the table, the charts with what works them, methods to copy, the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape

import perbit
from perbit.report import plots
from perbit.report.plots import Figure
from perbit.sim.compare import recipe, summary
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.links import Link
from perbit.sim.compare.summary import Row
from perbit.sim.federated.runs import Outcome

HEAD = (
    *summary.HEAD[:4],
    "bits / parameter / round",
    "× less than float32",
    "encode ms",
    "decode ms",
    "per-bit accuracy",
)
Choices = Sequence[tuple[str, str]]  # value and label; the first is chosen
BYTES_OR_ROUNDS: Choices = (("bytes", "bytes"), ("rounds", "rounds"))
LOG_OR_LINEAR: Choices = (("log", "log"), ("linear", "linear"))


def advice(rows: Sequence[Row]) -> str:
    """Which method to use, what that rests on, and a button that copies both with the method itself."""
    grounds = "".join(f"<li>{escape(line)}</li>" for line in summary.grounds(rows))
    said = f"<p><strong>{escape(summary.advice(rows))}</strong> {_copy(summary.complete(rows))}</p>"
    return f'<div class="card advice">{said}<ul>{grounds}</ul></div>'


def subtitle(comparison: Comparison, outcomes: Sequence[Outcome], n_methods: int) -> str:
    """What was run, in a line."""
    task, n_seeds = comparison.task, len(comparison.seeds)
    return (
        f"{task.model} with {outcomes[0]['n_parameters']:,} parameters on {task.data}, {task.rounds} rounds, "
        f"{task.present} of {task.clients} clients a round, {n_methods} methods, {n_seeds} seed{'s' * (n_seeds > 1)}"
    )


def table(rows: Sequence[Row]) -> str:
    """Sorted by a click on a heading."""
    colours, best = plots.colours([row.method for row in rows]), summary.recommended(rows)
    lines = []
    for row, colour in zip(rows, colours, strict=True):
        name, *texts = map(escape, summary.cells(row))
        numbers = "".join(
            f'<td data-value="{value:.9g}">{text}</td>' for text, value in zip(texts, _values(row), strict=True)
        )
        kind = ' class="best"' if row is best else ""
        mark = f'<span class="swatch" style="background:{colour}"></span>{name}'
        lines.append(f'<tr{kind} data-method="{name}"><td data-value="{name}">{mark}</td>{numbers}</tr>')
    titles = (*summary.head(rows)[:2], *HEAD[2:])
    head = "".join(f'<th scope="col"><button type="button">{escape(title)}</button></th>' for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _values(row: Row) -> tuple[float, ...]:
    """What the cells are sorted by; a method that diverged comes last."""
    reached = float("-inf") if row.diverged else row.accuracy
    bits = (row.bits_per_parameter, row.times_less)
    return (reached, row.mb_up, row.mb_down, *bits, row.encode_ms, row.decode_ms, row.per_bit)


def legend(rows: Sequence[Row]) -> str:
    """A button for every method, and the direction that counts; they hold for all charts."""
    buttons = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-method="{escape(row.method.name)}">'
        f'<span class="swatch" style="background:{colour}"></span>{escape(row.method.name)}</button>'
        for row, colour in zip(rows, plots.colours([row.method for row in rows]), strict=True)
    )
    ways = choice("way", "Bytes", (("up", "up"), ("down", "down"), ("total", "up + down")))
    return f'<div class="bar needs-script">{ways}<div class="chips" role="group" aria-label="Methods">{buttons}</div></div>'


def choice(name: str, label: str, choices: Choices) -> str:
    """A row of buttons, one of them pressed."""
    buttons = "".join(
        f'<button type="button" data-set="{name}" data-to="{value}" aria-pressed="{str(not i).lower()}">{escape(text)}</button>'
        for i, (value, text) in enumerate(choices)
    )
    return f'<span class="choice" role="group" aria-label="{escape(label)}"><span class="soft">{escape(label)}</span>{buttons}</span>'


def slider(name: str, label: str) -> str:
    """A slider whose value is written beside it."""
    return (
        f'<label class="slider"><span class="soft">{escape(label)}</span>'
        f'<input type="range" id="{name}" min="0" max="100"><output for="{name}"></output></label>'
    )


def charts(drawn: Mapping[str, Figure], links: Sequence[Link]) -> str:
    """Every chart of the page, each with the pictures that stand for it where no script runs."""
    near = (("log", "log of the error"), ("linear", "linear"))
    named = tuple((str(i), link.name) for i, link in enumerate(links))
    times = [name for name in drawn if name.startswith("accuracy-time-")]
    extra = [name for name in drawn if name.startswith(("statistics-", "tried"))]
    look = choice("frontierX", "Bytes", LOG_OR_LINEAR), choice("frontierY", "Accuracy", near)
    parts = [
        _chart("frontier", "Accuracy for bytes", "".join(look), _pictures(drawn, ["frontier"]), "wide tall"),
        _chart("reach", "Bytes until an accuracy is reached", slider("target", "Accuracy"), "", ""),
        _chart(
            "time", "Time on a link", slider("speed", "Link") + choice("link", "or", named), _pictures(drawn, times), ""
        ),
        _chart(
            "training",
            "Through training",
            choice("trainingX", "Against", BYTES_OR_ROUNDS)
            + choice("trainingY", "Show", (("accuracy", "accuracy"), ("error", "log of the error"), ("loss", "loss"))),
            _pictures(drawn, ["accuracy-bytes", "accuracy-rounds", "loss"]),
            "wide",
        ),
        _chart("layers", "Bytes of each layer", choice("layersX", "Bytes", LOG_OR_LINEAR), "", ""),
        _chart("clients", "Bytes of each client", choice("clientsY", "Bytes", LOG_OR_LINEAR), "", ""),
    ]
    if "gennorm" in drawn:
        shown = (("beta", "shape β"), ("alpha", "scale α"), ("zero", "zeros"))
        pick = '<label class="pick"><span class="soft">Method</span><select id="fitsOf"></select></label>'
        controls = pick + choice("fitsY", "Show", shown)
        parts.append(_chart("fits", "How updates are distributed", controls, _pictures(drawn, ["gennorm"]), "wide"))
    parts += [f'<section class="card chart">{_pictures(drawn, [name], always=True)}</section>' for name in extra]
    return "".join(parts)


def _chart(name: str, title: str, controls: str, pictures: str, kind: str) -> str:
    only = "" if pictures else " needs-script"
    return (
        f'<section class="card chart {kind}{only}" id="{name}"><h3>{escape(title)}</h3>'
        f'<p class="soft said"></p><div class="controls needs-script">{controls}</div>'
        f'<div class="live" data-chart="{name}"></div>{pictures}</section>'
    )


def _pictures(drawn: Mapping[str, Figure], names: Sequence[str], always: bool = False) -> str:
    kind = "" if always else ' class="still"'
    return "".join(
        f'<figure{kind} id="picture-{name}">{drawn[name].svg}<figcaption>{escape(drawn[name].caption)}</figcaption></figure>'
        for name in names
    )


def method(row: Row) -> str:
    """A method to copy: complete, in three forms."""
    chosen = row.method
    lines = [("up", chosen.up_text), *((f"up, {rule}", spec) for rule, spec in chosen.rules.items())]
    lines += [("down", chosen.down_text)] if chosen.down_text != "raw" else []
    shown = "".join(
        f'<div class="spec"><span class="soft">{escape(way)}</span><code>{escape(spec)}</code></div>'
        for way, spec in lines
    )
    said = {key: value for key, value in recipe.keys(chosen).items() if key not in ("protocol", "up", "down", "rules")}
    options = "".join(f", {key} = {value}" for key, value in said.items())
    forms = "".join(
        f"<h4>{where} {_copy(code)}</h4><pre>{escape(code)}</pre>" for where, code in recipe.everything(chosen).items()
    )
    return (
        f'<details><summary><strong>{escape(chosen.name)}</strong> <span class="soft">{escape(chosen.protocol + options)}</span>'
        f"{shown}</summary>{forms}</details>"
    )


def settings(comparison: Comparison) -> str:
    """What was trained, setting by setting, and the whole comparison as a file to run again."""
    known = {**asdict(comparison.task), "seeds": ", ".join(map(str, comparison.seeds)), "perbit": perbit.__version__}
    listed = "".join(f"<dt>{key}</dt><dd>{escape(str(value)) or '–'}</dd>" for key, value in known.items())
    again = recipe.comparison_toml(comparison)
    file = f"<details><summary>The whole comparison as TOML</summary><h4>{_copy(again)}</h4><pre>{escape(again)}</pre></details>"
    return f'<dl class="card">{listed}</dl><div class="card specs">{file}</div>'


def _copy(text: str) -> str:
    return f'<button type="button" class="copy" data-copy="{escape(text)}">copy</button>'
