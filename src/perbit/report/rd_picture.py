"""The pictures of `perbit rd`: of one tensor, and of a whole model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perbit.report.rd import RateCurve, RateSource
from perbit.report.rd_model import ModelSource
from perbit.report.style import COLOURS, MARKERS, picture

_MOST_BITS = 6.0
_MODEL_BITS, _MODEL_DB = (0.002, 4.0), (-20.0, 0.5)  # what the picture of a model shows


def draw(source: RateSource, curves: Sequence[RateCurve], m: float, path: Path) -> None:
    """Error against real bits, plain and weighted, over the bounds of the fitted GenNorm."""
    with picture(path, 1, 2, width=13, height=6.4) as drawing:
        rate = np.linspace(0.02, _MOST_BITS, 300)
        plain, weighted = drawing.axes
        plain.plot(rate, source.bound_db(rate), color="black", linewidth=2, label="R(D) bound")
        plain.plot(
            rate, source.shannon_db(rate), color="black", linewidth=1, linestyle=":", label="Shannon lower bound"
        )
        weighted.plot(
            rate, source.weighted_limit_db(rate, m), color="black", linewidth=1, linestyle="--", label="high-rate limit"
        )
        for index, curve in enumerate(curves):
            for ax, error in ((plain, "mse_db"), (weighted, "weighted_db")):
                _plot(ax, curve, error, index)
        floor = float(source.bound_db(np.array([_MOST_BITS]))[0])
        for ax, title in ((plain, "mean squared error"), (weighted, f"weighted by |x|^{m:g}")):
            ax.set(
                xlim=(0, _MOST_BITS),
                ylim=(floor, 1),
                xlabel="real bits per value",
                ylabel="error (dB of sending nothing)",
            )
            ax.set_title(title)
        weighted.set_ylim(floor - 8, 1)
        weighted.legend(*([part[0]] for part in weighted.get_legend_handles_labels()), loc="upper right")
        drawing.suptitle(f"{source.name}: fitted β = {source.beta:.3g}, {source.values.size:,} values", fontsize=12)
        drawing.legend(*plain.get_legend_handles_labels(), loc="outside lower center", ncols=4)


def draw_model(source: ModelSource, curves: Sequence[RateCurve], peers: Sequence[RateCurve], path: Path) -> None:
    """Error against real bits of all large tensors together; black: the points of another codec."""
    with picture(path, width=9, height=6) as drawing:
        (ax,) = drawing.axes
        for curve, style in zip(peers, ("--", "-"), strict=False):
            points = curve.useful()
            bits, heights = [p.bits_per_value for p in points], [p.mse_db for p in points]
            ax.plot(bits, heights, color="black", linestyle=style, label=curve.spec)
        for index, curve in enumerate(curves):
            _plot(ax, curve, "mse_db", index)
        ax.set(
            xscale="log",
            xlim=_MODEL_BITS,
            ylim=_MODEL_DB,
            xlabel="real bits per value",
            ylabel="error (dB of sending nothing)",
        )
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set_title(f"{source.name}: {len(source.tensors)} tensors, {source.values.size:,} values")
        ax.legend(loc="lower left")


def _plot(ax: Any, curve: RateCurve, error: str, index: int) -> None:
    points = curve.useful(error)
    ax.plot(
        [point.bits_per_value for point in points],
        [getattr(point, error) for point in points],
        label=curve.spec,
        linestyle="-" if index < len(COLOURS) else "--",
        color=COLOURS[index % len(COLOURS)],
        marker=MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
    )
