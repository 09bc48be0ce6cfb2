"""The figures, each drawn twice: for light and for dark pages. Sized to be read on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from perbit.report.curves import Curve
from perbit.report.style import plotting
from perbit.sim.compare.links import Link
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.settings import Method

SIZE = (5.4, 4.3)  # inches
DPI = 160
COLOURS = ("#e15759", "#4e9ad6", "#59a14f", "#f28e2b", "#b07aa1", "#1fb5ac", "#d4a106", "#ff7fa8", "#9c755f", "#7b83eb")
GREY = "#8a8f98"  # float32, the yardstick
POINTS_SHOWN = 35  # below the best accuracy: how a curve starts matters less than where it ends


@dataclass(frozen=True)
class Theme:
    """Colours of a page."""

    name: str
    background: str
    text: str
    grid: str


LIGHT = Theme("light", "#ffffff", "#1d2330", "#d9dde5")
DARK = Theme("dark", "#171c26", "#dfe4ee", "#353d4d")


@dataclass(frozen=True)
class Figure:
    """One figure of the report: a file name, a caption, a PNG for each theme."""

    name: str
    caption: str
    light: bytes
    dark: bytes


def figures(curves: Sequence[Curve], links: Sequence[Link], outcomes: Sequence[Outcome]) -> list[Figure]:
    """All figures, in the order of the page; none where no method got through a single round."""
    pairs = zip(curves, colours([curve.method for curve in curves]), strict=True)
    drawn = [(curve, shade) for curve, shade in pairs if len(curve.rounds) > 1]
    if not drawn:
        return []
    curves, shades = [curve for curve, _ in drawn], [shade for _, shade in drawn]

    def against(xs: Sequence[Any], **look: Any) -> Any:
        def draw(axis: Any) -> None:
            _lines(axis, curves, shades, xs)
            axis.set(**look)

        return draw

    sent = against([curve.mb_up for curve in curves], xscale="log", xlabel="MB sent up, all clients (log scale)")
    rounds = against([curve.rounds for curve in curves], xlabel="rounds")
    made = [
        _figure("accuracy-bytes", "Accuracy against bytes sent up: further left is cheaper", sent),
        _figure("accuracy-rounds", "Accuracy against rounds", rounds),
    ]
    for link in links:
        name = "accuracy-time-" + "".join(c if c.isalnum() else "-" for c in link.name.lower()).strip("-")
        said = f"Accuracy against time at {link.name}: compute, encoding and decoding measured, transfer modelled"
        label = f"seconds at {link.name} (modelled transfer, log scale)"
        elapsed = against([curve.seconds[link.name] for curve in curves], xscale="log", xlabel=label)
        made.append(_figure(name, said, elapsed))
    if outcomes[0]["fits"]:
        method = outcomes[0]["method"]["name"]
        said = f"GenNorm fits of one client's updates through training ({method}): β = 2 is Gaussian, 1 Laplace, lower is heavier-tailed"
        made.append(_figure("gennorm", said, lambda axis: _shapes(axis, outcomes[0]["fits"])))
    return made


def colours(methods: Sequence[Method]) -> list[str]:
    """One colour a method, grey for float32."""
    compressed = [i for i, method in enumerate(methods) if not method.is_float32]
    return [COLOURS[compressed.index(i) % len(COLOURS)] if i in compressed else GREY for i in range(len(methods))]


def _lines(axis: Any, curves: Sequence[Curve], shades: Sequence[str], xs: Sequence[Any]) -> None:
    for curve, colour, x in zip(curves, shades, xs, strict=True):
        keep = slice(1, None) if len(x) > 1 else slice(None)  # nothing was sent before the first round
        style = "--" if curve.method.is_float32 else "-"
        y = 100 * curve.mean
        axis.plot(x[keep], y[keep], style, color=colour, label=curve.method.name, linewidth=1.8)
        axis.plot(x[-1], y[-1], "o", color=colour, markersize=4.5)
        if len(curve.accuracy) > 1:
            low, high = 100 * curve.accuracy.min(axis=0), 100 * curve.accuracy.max(axis=0)
            axis.fill_between(x[keep], low[keep], high[keep], color=colour, alpha=0.15, linewidth=0)
    best, lowest = 100 * max(c.accuracy.max() for c in curves), 100 * min(c.mean.min() for c in curves)
    axis.set_ylabel("test accuracy, %")
    if best - POINTS_SHOWN > lowest:
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


def _figure(name: str, caption: str, draw: Any) -> Figure:
    return Figure(name, caption, _png(draw, LIGHT), _png(draw, DARK))


def _png(draw: Any, theme: Theme) -> bytes:
    matplotlib = plotting()
    with matplotlib.rc_context(_style(theme)):
        figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
        axis = figure.subplots()
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
        draw(axis)
        if axis.get_xscale() == "log":
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
        out = BytesIO()
        figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


def _style(theme: Theme) -> dict[str, Any]:
    return {
        "figure.facecolor": theme.background,
        "axes.facecolor": theme.background,
        "savefig.facecolor": theme.background,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.7,
        "axes.edgecolor": theme.grid,
        "font.size": 10,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.text),
    }
