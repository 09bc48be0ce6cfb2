"""The static pictures: what the page shows without scripts and on paper, and the .png files beside it. Sized to be read on a phone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from perbit.report.curves import Curve
from perbit.report.style import plotting
from perbit.sim.compare import summary
from perbit.sim.compare.links import Link
from perbit.sim.compare.summary import Row
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.settings import Method

SIZE = (5.4, 4.3)  # inches
DPI = 110
COLOURS = ("#e15759", "#4e9ad6", "#59a14f", "#f28e2b", "#b07aa1", "#1fb5ac", "#d4a106", "#ff7fa8", "#9c755f", "#7b83eb")
GREY = "#8a8f98"  # float32, the yardstick
POINTS_SHOWN = 35  # below the best accuracy: how a curve starts matters less than where it ends
TEXT, LINE = "#1d2330", "#d9dde5"
THEMED = {"#ffffff": "none", TEXT: "var(--text)", LINE: "var(--line)"}  # in the page, where colours depend on the theme


@dataclass(frozen=True)
class Figure:
    """One picture: a file name, a caption, a PNG for a file of its own, and an SVG with the page's colours."""

    name: str
    caption: str
    png: bytes
    svg: str


def figures(
    curves: Sequence[Curve], rows: Sequence[Row], links: Sequence[Link], outcomes: Sequence[Outcome]
) -> list[Figure]:
    """All of them, in the order of the page; none where no method got through a single round."""
    shades = colours([curve.method for curve in curves])
    shown = [(curve, shade) for curve, shade in zip(curves, shades, strict=True) if len(curve.rounds) > 1]
    if not shown:
        return []
    lines, metric = _Lines(shown, rows[0].metric), rows[0].metric or "accuracy"
    said = "Final {} against bytes sent up, with the standard deviation over seeds; the dashed line is what a recommended method needs"
    made = [
        drawn("frontier", said.format(metric), lambda axis: _frontier(axis, rows, shades)),
        drawn("accuracy-bytes", f"The {metric} against bytes sent up: further left is cheaper", lines.against_bytes),
        drawn("accuracy-rounds", f"The {metric} against rounds", lines.against_rounds),
        drawn("loss", "The test loss against rounds", lines.loss),
    ]
    for link in links:
        name = "accuracy-time-" + "".join(c if c.isalnum() else "-" for c in link.name.lower()).strip("-")
        caption = (
            f"The {metric} against time at {link.name}: compute, encoding and decoding measured, transfer modelled"
        )
        made.append(drawn(name, caption, lambda axis, link=link: lines.against_time(axis, link)))
    if outcomes[0]["fits"]:
        method = outcomes[0]["method"]["name"]
        caption = f"GenNorm fits of one client's updates through training ({method}): β = 2 is Gaussian, 1 Laplace, lower is heavier-tailed"
        made.append(drawn("gennorm", caption, lambda axis: _shapes(axis, outcomes[0]["fits"])))
    return made


def colours(methods: Sequence[Method]) -> list[str]:
    """One colour a method, grey for float32."""
    compressed = [i for i, method in enumerate(methods) if not method.is_float32]
    return [COLOURS[compressed.index(i) % len(COLOURS)] if i in compressed else GREY for i in range(len(methods))]


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The methods that no other beats in both: cheaper ones are less accurate. Cheapest first, by bytes sent up."""
    made: list[Row] = []
    for row in sorted((row for row in rows if not row.diverged), key=lambda row: (row.mb_up, -row.accuracy)):
        if not made or row.accuracy > made[-1].accuracy:
            made.append(row)
    return made


def _frontier(axis: Any, rows: Sequence[Row], shades: Sequence[str]) -> None:
    factor, front = (1 if rows[0].metric else 100), frontier(rows)
    axis.step(*_points(front, factor), where="post", color=GREY, linewidth=1, zorder=1)
    for row, colour in zip(rows, shades, strict=True):
        if not row.diverged:
            error = None if row.accuracy_sd is None else factor * row.accuracy_sd
            axis.errorbar(*_points([row], factor), yerr=error, fmt="o", color=colour, label=row.method.name, capsize=3)
    needed = summary.target(rows)
    if needed is not None:
        axis.axhline(factor * needed, color=GREY, linewidth=1, linestyle="--")
    axis.set(xscale="log", xlabel="MB sent up, all clients (log scale)", ylabel=_unit(rows[0].metric))


def _points(rows: Sequence[Row], factor: float) -> tuple[list[float], list[float]]:
    return [row.mb_up for row in rows], [factor * row.accuracy for row in rows]


def _unit(metric: str) -> str:
    return metric or "test accuracy, %"


@dataclass(frozen=True)
class _Lines:
    """Curves through training: the mean over seeds, and the range between them."""

    shown: Sequence[tuple[Curve, str]]
    metric: str

    def against_bytes(self, axis: Any) -> None:
        axis.set(xscale="log", xlabel="MB sent up, all clients (log scale)")
        self._draw(axis, [curve.mb_up for curve, _ in self.shown])

    def against_rounds(self, axis: Any) -> None:
        axis.set(xlabel="rounds")
        self._draw(axis, [curve.rounds for curve, _ in self.shown])

    def against_time(self, axis: Any, link: Link) -> None:
        axis.set(xscale="log", xlabel=f"seconds at {link.name} (modelled transfer, log scale)")
        self._draw(axis, [curve.elapsed(link) for curve, _ in self.shown])

    def loss(self, axis: Any) -> None:
        axis.set(xlabel="rounds", ylabel="test loss", yscale="log")
        for curve, colour in self.shown:
            axis.plot(curve.rounds, curve.loss.mean(axis=0), color=colour, label=curve.method.name, linewidth=1.8)

    def _draw(self, axis: Any, xs: Sequence[Any]) -> None:
        factor = 1 if self.metric else 100
        for (curve, colour), x in zip(self.shown, xs, strict=True):
            keep = slice(1, None)  # nothing was sent before the first round
            y, style = factor * curve.mean, "--" if curve.method.is_float32 else "-"
            axis.plot(x[keep], y[keep], style, color=colour, label=curve.method.name, linewidth=1.8)
            axis.plot(x[-1], y[-1], "o", color=colour, markersize=4.5)
            if len(curve.accuracy) > 1:
                low, high = factor * curve.accuracy.min(axis=0), factor * curve.accuracy.max(axis=0)
                axis.fill_between(x[keep], low[keep], high[keep], color=colour, alpha=0.15, linewidth=0)
        axis.set_ylabel(_unit(self.metric))
        best = factor * max(curve.accuracy.max() for curve, _ in self.shown)
        if not self.metric and best - POINTS_SHOWN > factor * min(curve.mean.min() for curve, _ in self.shown):
            axis.set_ylim(best - POINTS_SHOWN, min(100.0, best + 2))


def _shapes(axis: Any, fits: Sequence[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(fit["tensor"] for fit in fits))
    for name, colour in zip(names, COLOURS, strict=False):
        points = np.array([(fit["round"], fit["beta"]) for fit in fits if fit["tensor"] == name])
        axis.plot(points[:, 0], points[:, 1], "o-", color=colour, label=name, linewidth=1.5, markersize=3)
    for beta, law in ((2.0, "Gaussian"), (1.0, "Laplace")):
        axis.axhline(beta, color=GREY, linewidth=0.8, linestyle=":")
        axis.annotate(
            law, (1, beta), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8, color=GREY
        )
    axis.set(xlabel="rounds", ylabel="shape β of the update")
    axis.set_ylim(bottom=0)


def drawn(name: str, caption: str, draw: Any) -> Figure:
    """A picture that `draw` puts onto an axis."""
    matplotlib = plotting()
    with matplotlib.rc_context(_style(name)):
        figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
        axis = figure.subplots()
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
        draw(axis)
        if axis.get_xscale() == "log":
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
        png, svg = BytesIO(), BytesIO()
        figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Figure(name, caption, png.getvalue(), _for_page(svg.getvalue().decode(), name))


def _for_page(svg: str, name: str) -> str:
    """The <svg> alone, as large as its place, in the page's font and colours; its ids are its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img" aria-hidden="true">', svg, count=1
    )
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(font: [\d.]+px) [^;\"]+", r"\1 system-ui, sans-serif", svg)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, themed in THEMED.items():
        svg = svg.replace(colour, themed)
    return re.sub(r"\s*\n\s*", "\n", svg)


def _style(name: str) -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": LINE,
        "grid.linewidth": 0.7,
        "axes.edgecolor": LINE,
        "font.size": 10,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
    }
