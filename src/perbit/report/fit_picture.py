"""The picture of `perbit fit`: histogram with the three fits, distances and kurtosis by tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.report.fits import FAMILIES, TensorFit
from perbit.report.style import COLOURS, MARKERS, picture

LABELS = {"normal": "Normal", "laplace": "Laplace", "gennorm": "GenNorm"}
COLOUR = dict(zip(FAMILIES, (COLOURS[2], COLOURS[4], COLOURS[1]), strict=True))


def draw(rows: list[TensorFit], shown: NDArray[Any], shown_row: TensorFit, path: Path) -> None:
    """Three panels; the histogram shows one tensor, the others all of them."""
    with picture(path, 1, 3, width=14, height=4.6) as drawing:
        histogram, distances, kurtosis = drawing.axes
        draw_histogram(histogram, shown, shown_row)
        draw_distances(distances, rows)
        draw_kurtosis(kurtosis, rows)


def draw_histogram(ax: Any, x: NDArray[Any], row: TensorFit) -> None:
    """Density of the non-zero values on a logarithmic scale, so that tails show."""
    values = np.asarray(x, np.float64).reshape(-1)
    values = values[values != 0]
    reach = 8 * row.sigma
    bins = min(161, 1 + 2 * int(values.size**0.5))
    ax.hist(values, bins=bins, range=(-reach, reach), density=True, color="#b9cfe4", label="values")
    grid = np.linspace(-reach, reach, 1001)
    for family in FAMILIES:
        label = f"{LABELS[family]}  W₂/σ = {row.w2[family] / row.sigma:.3f}"
        ax.plot(grid, row.dists[family].pdf(grid), color=COLOUR[family], label=label)
    one_value = bins / (values.size * 2 * reach)  # the height of a bar that holds one value
    peak = max(float(row.dists[family].pdf(row.mean)) for family in FAMILIES)
    ax.set(yscale="log", ylim=(one_value / 3, peak * 50), xlim=(-reach, reach), xlabel="value", ylabel="density")
    ax.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3))
    ax.set_title(f"{row.name or 'tensor'}: β = {row.beta:.2f}, {row.zero_mass:.1%} exact zeros")
    ax.legend(loc="upper right")


def draw_distances(ax: Any, rows: list[TensorFit]) -> None:
    """W₂/σ of each family by tensor."""
    for family, marker in zip(FAMILIES, MARKERS, strict=False):
        heights = [row.w2[family] / row.sigma for row in rows]
        ax.plot(heights, marker=marker, color=COLOUR[family], label=LABELS[family])
    ax.set(yscale="log", ylabel="W₂ / σ", title="distance from the values")
    name_ticks(ax, rows)
    ax.legend()


def draw_kurtosis(ax: Any, rows: list[TensorFit]) -> None:
    """Excess kurtosis by tensor: of the values, and of the GenNorm fitted to them."""
    ax.plot([row.kurtosis for row in rows], marker="o", color=COLOURS[0], label="values")
    ax.plot([row.gennorm_kurtosis for row in rows], marker="s", color=COLOUR["gennorm"], label="fitted GenNorm")
    ax.axhline(0, color="#888888", linewidth=0.8, linestyle="--")
    ax.annotate("normal", (0.01, 0), xycoords=("axes fraction", "data"), fontsize=8, color="#666666", va="bottom")
    ax.set_yscale("symlog", linthresh=1)
    ax.margins(y=0.15)
    ax.set(ylabel="excess kurtosis", title="kurtosis")
    name_ticks(ax, rows)
    ax.legend()


def name_ticks(ax: Any, rows: list[TensorFit]) -> None:
    """Names below the axis; every second or third where they would overlap."""
    every = 1 + len(rows) // 24
    ax.set_xticks(
        range(0, len(rows), every), [row.name or "tensor" for row in rows[::every]], rotation=60, ha="right", fontsize=8
    )
