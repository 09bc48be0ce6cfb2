"""What the page's script draws: plain numbers from the outcomes and ledgers of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.report import plots
from perbit.report.curves import Curve
from perbit.sim.compare import summary
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.links import Link
from perbit.sim.compare.summary import Row
from perbit.sim.federated.runs import Outcome

MOST_POINTS = 160  # of a curve in the page; results.json has all
SPEEDS = tuple(round(10 ** (step / 10), 1 - step // 10) for step in range(-10, 31))  # Mbit/s, ten to a decade
DIGITS = 5


def page_data(
    comparison: Comparison, curves: Sequence[Curve], rows: Sequence[Row], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """Everything the charts need, as JSON can hold it."""
    latency = comparison.links[0].latency_ms
    shades = plots.colours([curve.method for curve in curves])
    n_seeds = len(comparison.seeds)
    best = summary.recommended(rows)
    return {
        "metric": comparison.task.metric,
        "target": summary.target(rows),
        "best": best.method.name if best else None,
        "links": [link.name for link in comparison.links],
        "speeds": SPEEDS,
        "latency": latency,
        "methods": [
            _method(comparison, curve, row, shade, latency) | {"fits": _fits(outcomes[i * n_seeds]["fits"])}
            for i, (curve, row, shade) in enumerate(zip(curves, rows, shades, strict=True))
        ],
    }


def _method(comparison: Comparison, curve: Curve, row: Row, colour: str, latency: float) -> dict[str, Any]:
    keep = thinned(len(curve.rounds))
    swept = [Link("", speed, speed, latency) for speed in SPEEDS]
    return {
        "name": row.method.name,
        "colour": colour,
        "float32": row.method.is_float32,
        "diverged": row.diverged,
        "final": {
            "accuracy": _plain(row.finals),
            "up": _plain(curve.mb["up"][:, -1]),
            "down": _plain(curve.mb["down"][:, -1]),
        },
        "rounds": _plain(curve.rounds[keep]),
        "accuracy": [_plain(line) for line in curve.accuracy[:, keep]],
        "loss": [_plain(line) for line in curve.loss[:, keep]],
        "up": [_plain(line) for line in curve.mb["up"][:, keep]],
        "down": [_plain(line) for line in curve.mb["down"][:, keep]],
        "seconds": {
            "links": [_plain(curve.elapsed(link)[keep]) for link in comparison.links],
            "speeds": [_plain(curve.elapsed(link)[keep]) for link in swept],
        },
        "tensors": {way: tensors(curve, way) for way in ("up", "down")},
        "clients": {way: clients(curve, way) for way in ("up", "down")},
    }


def tensors(curve: Curve, way: str) -> dict[str, float]:
    """MB of each tensor over a run, the mean over seeds; the rest of the messages last."""
    names = list(dict.fromkeys(name for book in curve.books for name in book.tensors[way]))
    return {name: _mb([book.tensors[way].get(name, 0) for book in curve.books]) for name in names}


def clients(curve: Curve, way: str) -> list[float]:
    """MB of each client over a run, the mean over seeds."""
    found = [book.by_client(way) for book in curve.books]
    n = max(map(len, found))
    return [_mb([of[i] if i < len(of) else 0.0 for of in found]) for i in range(n)]


def thinned(n: int) -> list[int]:
    """Which of n points are kept: all if they are few, the first and the last always.

    >>> thinned(3), len(thinned(1000)), thinned(1000)[-1]
    ([0, 1, 2], 160, 999)
    """
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, MOST_POINTS))})


def _fits(fits: Sequence[dict[str, Any]]) -> list[list[Any]]:
    return [[fit["tensor"], fit["round"], *_plain([fit["beta"], fit["alpha"], fit["zero_mass"]])] for fit in fits]


def _mb(n_bytes: Sequence[float]) -> float:
    return _rounded(sum(n_bytes) / len(n_bytes) / 1e6)


def _plain(values: NDArray[np.float64] | Sequence[float]) -> list[float | None]:
    """JSON has neither NaN nor infinity."""
    return [_rounded(float(value)) if math.isfinite(value) else None for value in values]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
