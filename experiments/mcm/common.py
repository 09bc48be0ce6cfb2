"""Shared by the reproductions of MCM (Philippenko and Dieuleveut, NeurIPS 2021): settings of the authors, results as JSON and PNG."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perbit.files import write_atomically
from perbit.protocols import presets
from perbit.sim.verdicts import Claim
from perbit_papers.convex import Problem, Settings, load, prepare, report, run
from perbit_papers.series import Contest

BATCH = {"a9a": 50, "phishing": 50, "w8a": 12}
KEPT = Path("results/mcm/runs")  # finished runs, committed: another machine goes on from there
S1 = "qsgd(1, bucket=0) | rans"
S2 = "qsgd(2, bucket=0) | rans"


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="folder with a9a.npz, phishing.npz, w8a.npz")
    parser.add_argument("--output", type=Path, default=Path("results/mcm"), help="folder for JSON and PNG")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    return parser


def dataset(folder: Path, name: str, heterogeneous: bool = False) -> Problem:
    """As the authors prepare it: standardised, a column of ones, labels ±1, 20 clients."""
    return prepare(*load(folder / f"{name}.npz"), "logistic", 20, heterogeneous)


def algorithm(name: str, spec: str = S1, **more: Any) -> Any:
    preset = presets.PRESETS[name]
    if name == "sgd":
        return preset.make()
    return preset.make(spec, spec, **more) if preset.two_way else preset.make(spec, **more)


def kept(
    setting: str, problem: Problem, name: str, settings: Settings, spec: str = S1, label: str = "", **more: Any
) -> dict[str, Any]:
    """A run that was made before, or made now: a killed series goes on."""
    path = KEPT / f"{setting}, {label or name}, seed {settings.seed}.json"
    if path.is_file():
        known: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return known
    result = measure(problem, name, settings, spec, label, **more)
    path.parent.mkdir(parents=True, exist_ok=True)
    del result["loss"]  # excess + best_loss
    write_atomically(path, lambda file: file.write(json.dumps(result).encode()))
    return result


def measure(
    problem: Problem, name: str, settings: Settings, spec: str = S1, label: str = "", **more: Any
) -> dict[str, Any]:
    """One run as plain data, with the mean of its last excess losses."""
    began = time.perf_counter()
    ledger = run(problem, algorithm(name, spec, **more), settings)
    result = ledger.to_json(per_round=False)
    result["algorithm"] = label or name
    tail = [e for e in result["excess"][-10:] if e is not None]
    diverged = result["excess"][-1] is None
    result["final_excess"] = None if diverged else sum(tail) / len(tail)
    result["log10_excess"] = None if diverged else round(math.log10(max(1e-300, result["final_excess"])), 2)
    result["seconds"] = round(time.perf_counter() - began, 1)
    print(f"  {result['algorithm']:20} log10 excess {result['log10_excess']}  ({result['seconds']} s)", flush=True)
    return result


Results = list[dict[str, Any]]
DIVERGED = 3.0  # what counts as the log₁₀ excess of a run that left all bounds


def contest(claim: Claim, ours: str, theirs: str) -> Contest:
    """A claim about the log₁₀ excess of two algorithms, in decades: paired over seeds, one-sided, level .05."""
    return Contest(claim, ours, theirs, lambda run: -log_excess(run))


def log_excess(result: dict[str, Any]) -> float:
    return DIVERGED if result["log10_excess"] is None else float(result["log10_excess"])


def excesses(by_seed: list[Results], algorithm: str) -> list[float]:
    """The log₁₀ excess of an algorithm, seed by seed."""
    return [log_excess(result) for results in by_seed for result in results if result["algorithm"] == algorithm]


def verdict(setting: str, contests: Sequence[Contest], by_seed: list[Results], planned: int = 1) -> str:
    """Mean log₁₀ excesses, then a sentence for every claim; before the planned seeds are there, none is decided."""
    names = [result["algorithm"] for result in by_seed[0]]
    means = ", ".join(f"{name} {statistics.fmean(excesses(by_seed, name)):.2f}" for name in names)
    runs = [
        {**result, "method": result["algorithm"], "seed": i} for i, results in enumerate(by_seed) for result in results
    ]
    said = [str(one.judged(runs, planned)) for one in contests]
    return "\n".join(
        [f"{setting}, {len(by_seed)} of {max(planned, len(by_seed))} seeds: mean log10 excess {means}", *said]
    )


def judged(setting: str, contests: Sequence[Contest], by_seed: list[Results], seeds: Sequence[int]) -> dict[str, Any]:
    """What every JSON file has: the verdict, the log₁₀ excess of each seed, and the curves of the first."""
    return {
        "verdict": verdict(setting, contests, by_seed, len(seeds)),
        "log10_excess": [{result["algorithm"]: result["log10_excess"] for result in results} for results in by_seed],
        "results": by_seed[0],
    }


def save(folder: Path, name: str, content: dict[str, Any], title: str) -> None:
    """JSON, and a figure if there are curves."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1)
    write_atomically(folder / f"{name}.json", lambda file: file.write(text.encode()))
    report.plot(content["results"], folder / f"{name}.png", title)
    print(content["verdict"], flush=True)
