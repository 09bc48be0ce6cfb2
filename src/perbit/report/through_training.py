"""Figures of what `--statistics` recorded: distances, kurtosis and magnitudes by epoch, for the largest tensors of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perbit.report.plots import COLOURS, Figure, drawn
from perbit.sim.federated import ledger
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.statistics import FILE

N_TENSORS = 3  # in a figure
FAMILIES = {"normal": ":", "laplace": "--", "gennorm": "-"}


def figures(outcomes: Sequence[Outcome], folders: Sequence[Path]) -> list[Figure]:
    """For the first run that was recorded, and for the first whose uplink has an error memory."""
    recorded = [
        (o["method"]["name"], list(ledger.read(f / FILE)))
        for o, f in zip(outcomes, folders, strict=True)
        if (f / FILE).is_file()
    ]
    recorded = [(method, lines) for method, lines in recorded if lines]
    with_memory = [run for run in recorded if "g+m" in run[1][-1]]
    chosen = dict((*recorded[:1], *with_memory[:1]))
    return [
        figure for number, (method, lines) in enumerate(chosen.items()) for figure in _of_run(number, method, lines)
    ]


def _of_run(number: int, method: str, lines: list[dict[str, Any]]) -> list[Figure]:
    names = _largest(lines)
    what = "g+m" if "g+m" in lines[-1] else "g"
    said = {"g": "updates", "g+m": "updates with the decayed memory"}[what]

    def distances(axis: Any) -> None:
        for name, colour in zip(names, COLOURS, strict=False):
            for family, style in FAMILIES.items():
                _line(axis, lines, name, (what, family), f"{name}, {family}", colour, style)
        axis.set(xlabel="epochs", ylabel="W₂ to the fitted distribution", yscale="log")

    def magnitudes(axis: Any) -> None:
        for name, colour in zip(names, COLOURS, strict=False):
            _line(axis, lines, name, ("l1_gradient",), f"{name}, update", colour)
            if what == "g+m":
                _line(axis, lines, name, ("l1_memory",), f"{name}, memory", colour, "--")
        axis.set(xlabel="epochs", ylabel="mean magnitude", yscale="log")

    def tails(axis: Any) -> None:
        for name, colour in zip(names, COLOURS, strict=False):
            _line(axis, lines, name, (what, "kurtosis"), name, colour)
        axis.set(xlabel="epochs", ylabel="excess kurtosis")

    return [
        drawn(f"statistics-distance-{number}", f"W₂ of three fitted families to the {said} ({method})", distances),
        drawn(
            f"statistics-kurtosis-{number}",
            f"Excess kurtosis of the {said} ({method}): 0 is Gaussian, 3 Laplace",
            tails,
        ),
        drawn(f"statistics-magnitude-{number}", f"Mean magnitude of updates and memory ({method})", magnitudes),
    ]


def _largest(lines: list[dict[str, Any]]) -> list[str]:
    """The tensors that contribute most to the first update, in the order of the model."""
    first = [line for line in lines if line["epoch"] == lines[0]["epoch"] and line["g"]]
    largest = sorted(first, key=lambda line: -line["l1_gradient"])[:N_TENSORS]
    return [line["tensor"] for line in first if line in largest]


def _line(
    axis: Any, lines: list[dict[str, Any]], name: str, keys: tuple[str, ...], label: str, colour: str, style: str = "-"
) -> None:
    points = []
    for line in lines:
        value: Any = line
        for key in keys:
            value = None if value is None else value.get(key)
        if line["tensor"] == name and value is not None:
            points.append((line["epoch"], value))
    if points:
        axis.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=1.5)
