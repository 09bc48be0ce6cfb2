"""One look for every picture. matplotlib is optional: it is imported here, when a picture is asked for."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perbit import files
from perbit.errors import PerbitError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31", "#444444", "#a6761d")
MARKERS = "os^Dv<>PXh"
_LOOK: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "savefig.dpi": 120,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


class MissingExtraError(PerbitError):
    """An optional package is not installed."""


def plotting() -> Any:
    """matplotlib, or a sentence about how to get it. Its `figure.Figure` needs no display."""
    try:
        import matplotlib.figure
    except ImportError:
        said = "pictures need matplotlib: pip install perbit[report], or go without them (--no-report, --no-plot)"
        raise MissingExtraError(said) from None
    return matplotlib


@contextmanager
def picture(path: Path, rows: int = 1, columns: int = 1, width: float = 8.0, height: float = 4.5) -> Iterator[Any]:
    """A figure with rows × columns axes to draw on; written as PNG at the end, the same bytes for the same picture."""
    matplotlib = plotting()
    if path.suffix != ".png":
        raise files.FileError(f"pictures are written as .png, not {path.name}")
    with matplotlib.rc_context(_LOOK):
        drawing = matplotlib.figure.Figure(figsize=(width, height))
        drawing.subplots(rows, columns, squeeze=False)
        yield drawing
        data = io.BytesIO()
        drawing.savefig(data, format="png", metadata={"Software": None})
    files.write_atomically(path, lambda file: file.write(data.getvalue()))
