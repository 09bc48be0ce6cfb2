"""Error feedback at equal bytes: is `rd` better or worse than its rivals, and should `federated` use it? Run after the comparisons beside this file.

    perbit compare experiments/rd/lenet.toml -o results/compare/rd-lenet
    perbit compare experiments/rd/cnn.toml -o results/compare/rd-cnn
    perbit compare experiments/rd/federated.toml -o results/compare/rd-federated
    perbit compare experiments/rd/partial.toml -o results/compare/rd-partial
    python experiments/rd/verdicts.py        prints a row for each budget and rival; writes results/rd_training.json

The tests are those that the files state: final accuracies, paired over seeds; a one-sided t-test in either direction, level .05, for the
first two, and for the default that `rd` sends less and loses at most half a point.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from perbit.files import write_json
from perbit.sim.verdicts import Claim, chance_of_more, differences

TASKS = ("lenet", "cnn")
LEVEL = 0.05
CLAIM = "with rd, federated loses at most half a point to top-k with 4 bits"
DEFAULTS = {"rd-federated": f"all clients: {CLAIM}", "rd-partial": f"a fifth of the clients a round: {CLAIM}"}


def finals(results: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Final accuracies and megabytes by method, seed by seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in results["runs"]:
        method = found.setdefault(run["method"]["name"], {"accuracy": [], "mb_up": [], "mb_down": []})
        method["accuracy"].append(run["history"][-1]["accuracy"])
        method["mb_up"].append(run["bytes_up"] / 1e6)
        method["mb_down"].append(run["bytes_down"] / 1e6)
    return found


def compared(task: str, methods: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """A row for each budget and rival."""
    rows = []
    for name, ours in methods.items():
        if not name.startswith("rd, "):
            continue
        budget = name.removeprefix("rd, ")
        for rival, theirs in methods.items():
            if rival == name or not rival.endswith(f", {budget}"):
                continue
            away = differences(ours["accuracy"], theirs["accuracy"])
            better, worse = chance_of_more(away), chance_of_more([-d for d in away])
            end = "better" if better < LEVEL else "worse" if worse < LEVEL else "not told apart"
            row = {"task": task, "budget": budget, "rival": rival, "rd": ours, "of_rival": theirs}
            rows.append({**row, "p_better": better, "p_worse": worse, "rd_is": end})
    return rows


def of_the_default(folder: str, claim: str) -> str:
    """Whether `rd` should be what `federated` has."""
    results = Path("results/compare") / folder / "results.json"
    if not results.exists():
        return f"{folder}: not run yet"
    methods = finals(json.loads(results.read_text(encoding="utf-8")))
    rd, rival = methods["rd"], methods["top-k, 4 bits"]
    said = Claim(claim, least=-0.005, level=LEVEL).judged(rd["accuracy"], rival["accuracy"])
    sizes = [
        f"{statistics.fmean(found['mb_up']):.2f} up and {statistics.fmean(found['mb_down']):.2f} down"
        for found in (rd, rival)
    ]
    return f"{said}; MB: {sizes[0]}, against {sizes[1]}"


def main() -> None:
    rows, reference = [], {}
    for task in TASKS:
        results = Path(f"results/compare/rd-{task}/results.json")
        if not results.exists():
            print(f"{task}: not run yet")
            continue
        methods = finals(json.loads(results.read_text(encoding="utf-8")))
        reference[task] = methods["float32"]["accuracy"]
        print(f"{task}: float32 {statistics.fmean(reference[task]):.1%}")
        for row in compared(task, methods):
            rows.append(row)
            accuracies = [statistics.fmean(row[who]["accuracy"]) for who in ("rd", "of_rival")]
            sizes = [statistics.fmean(row[who]["mb_up"]) for who in ("rd", "of_rival")]
            print(
                f"  rd {accuracies[0]:.1%}, {sizes[0]:.3f} MB · {row['rival']:<26} {accuracies[1]:.1%}, {sizes[1]:.3f} MB · "
                f"rd is {row['rd_is']} (p better {row['p_better']:.3f}, worse {row['p_worse']:.3f})"
            )
    defaults = [of_the_default(folder, claim) for folder, claim in DEFAULTS.items()]
    print("\n".join(defaults))
    write_json(
        Path("results/rd_training.json"), {"level": LEVEL, "float32": reference, "rows": rows, "default": defaults}
    )


if __name__ == "__main__":
    main()
