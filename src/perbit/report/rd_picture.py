"""The picture of `perbit rd`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perbit.report.rd import RateCurve, RateSource
from perbit.report.style import COLOURS, MARKERS, picture

_MOST_BITS = 6.0


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
            look = {
                "color": COLOURS[index % len(COLOURS)],
                "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
            }
            style = "-" if index < len(COLOURS) else "--"
            for ax, error in ((plain, "mse_db"), (weighted, "weighted_db")):
                points = curve.useful(error)
                bits, heights = [p.bits_per_value for p in points], [getattr(p, error) for p in points]
                ax.plot(bits, heights, label=curve.spec, linestyle=style, **look)
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
