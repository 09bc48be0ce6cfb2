"""CO₃, Figs. 1-5, 7-11 and Table IV: how gradients, and gradients with memory, are distributed through 50 epochs of training.

    python experiments/co3/statistics.py [--runs perbit-runs/co3-statistics]         results/co3_statistics.json

Trains experiments/co3/statistics.toml with `perbit compare --statistics --resume`, and judges what was recorded: one training, layer by layer and
epoch by epoch, so these are observations without a test over seeds. The bars, stated before the run: "nearest" means in 95 % of all layers and
epochs; "falls" means from the first fifth of the epochs to the last in three layers of four; "stable" means that after the first fifth the ratio's
standard deviation over epochs is at most .3 of its mean, in three layers of four.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perbit_papers.results import RESULTS, write_json

HERE = Path(__file__).parent
FAMILIES = ("gennorm", "laplace", "normal")
NEAREST, MOST_LAYERS, STEADY, FIFTH = 0.95, 0.75, 0.3, 5
Line = dict[str, Any]


def recorded(runs: Path, part: str) -> dict[str, list[Line]]:
    """Lines by layer, in the order of the epochs, of the run that recorded this: "g", or "g+m"."""
    by_layer: dict[str, list[Line]] = {}
    for path in sorted(runs.glob("*/statistics.jsonl")):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        has_memory = any("g+m" in line for line in lines)
        if has_memory != (part == "g+m"):
            continue
        for line in lines:
            if line.get(part) and line.get("l1_memory") != 0:  # a tensor that goes raw remembers nothing
                by_layer.setdefault(line["tensor"], []).append(line)
    return by_layer


def nearest(layers: dict[str, list[Line]], part: str, claim: str) -> Line:
    fits = [line[part] for lines in layers.values() for line in lines]
    share = statistics.fmean(min(FAMILIES, key=fit.get) == "gennorm" for fit in fits)
    return _said(share >= NEAREST, claim, f"in {share:.1%} of {len(fits)} layers and epochs")


def falls(layers: dict[str, list[Line]], value: Callable[[Line], float], claim: str) -> Line:
    moved = {name: _ends(list(map(value, lines))) for name, lines in layers.items()}
    n_fallen = sum(last < first for first, last in moved.values())
    shown = ", ".join(f"{name} {first:.3g}→{last:.3g}" for name, (first, last) in moved.items())
    return _said(n_fallen >= MOST_LAYERS * len(moved), claim, f"in {n_fallen} of {len(moved)} layers: {shown}")


def stable(layers: dict[str, list[Line]], claim: str) -> Line:
    ratios = {
        name: [line["l1_memory"] / line["l1_gradient"] for line in lines[len(lines) // FIFTH :]]
        for name, lines in layers.items()
    }
    spread = {name: statistics.pstdev(values) / statistics.fmean(values) for name, values in ratios.items()}
    n_stable = sum(one <= STEADY for one in spread.values())
    shown = ", ".join(f"{name} {statistics.fmean(values):.2f}" for name, values in ratios.items())
    found = f"in {n_stable} of {len(spread)} layers; memory over gradient: {shown}"
    return _said(n_stable >= MOST_LAYERS * len(spread), claim, found)


def _ends(values: list[float]) -> tuple[float, float]:
    """Means of the first and of the last fifth."""
    part = max(1, len(values) // FIFTH)
    return statistics.fmean(values[:part]), statistics.fmean(values[-part:])


def _said(agrees: bool, claim: str, found: str) -> Line:
    return {"agrees": agrees, "claim": claim, "found": found}


def judged(runs: Path) -> dict[str, Any]:
    plain, corrected = recorded(runs, "g"), recorded(runs, "g+m")
    verdicts = [
        nearest(plain, "g", "Figs. 1-3: GenNorm is nearest (W₂)"),
        falls(plain, lambda line: line["g"]["normal"] / line["g"]["gennorm"], "Figs. 2-3: the normal closes in on GenNorm with training"),
        falls(plain, lambda line: abs(line["g"]["kurtosis"]), "Figs. 4-5: excess kurtosis goes towards 0 with training"),
        falls(plain, lambda line: line["g"]["variance"], "Table IV: the gradient's variance falls with training"),
        nearest(corrected, "g+m", "Figs. 7-9: GenNorm is nearest to g + γm, γ = .7"),
        stable(corrected, "Figs. 10-11: the memory's magnitude keeps its ratio to the gradient's, γ = .7"),
    ]  # fmt: skip
    layers = {
        part: {name: [_shown(line, part) for line in lines] for name, lines in found.items()}
        for part, found in (("g", plain), ("g+m", corrected))
    }
    return {"verdicts": verdicts, "layers": layers}


def _shown(line: Line, part: str) -> Line:
    """What is kept of an epoch, to four digits."""
    numbers = {**line[part], **{key: line[key] for key in ("l1_gradient", "l1_memory") if key in line}}
    return {"epoch": line["epoch"], **{key: float(f"{value:.4g}") for key, value in numbers.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("perbit-runs/co3-statistics"))
    runs = parser.parse_args().runs
    more = ("--statistics", "--resume", "--processes", "1", "-o", str(runs))
    command = (sys.executable, "-m", "perbit.cli", "compare", str(HERE / "statistics.toml"), *more)
    subprocess.run(command, check=True)
    found = judged(runs)
    write_json(RESULTS / "co3_statistics.json", found)
    for said in found["verdicts"]:
        print(f"{'AGREES' if said['agrees'] else 'DIFFERS'}: {said['claim']}: {said['found']}")


if __name__ == "__main__":
    main()
