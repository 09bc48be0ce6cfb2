"""Shared by the reproductions of MCM (Philippenko and Dieuleveut, NeurIPS 2021): settings of the authors, results as JSON and PNG."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

from perbit.files import write_atomically
from perbit.protocols import presets
from perbit_papers.convex import Problem, Settings, load, prepare, report, run

BATCH = {"a9a": 50, "phishing": 50, "w8a": 12}
S1 = "qsgd(1, bucket=0) | rans"
S2 = "qsgd(2, bucket=0) | rans"


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="folder with a9a.npz, phishing.npz, w8a.npz")
    parser.add_argument("--output", type=Path, default=Path("results/mcm"), help="folder for JSON and PNG")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def dataset(folder: Path, name: str, heterogeneous: bool = False) -> Problem:
    """As the authors prepare it: standardised, a column of ones, labels ±1, 20 clients."""
    return prepare(*load(folder / f"{name}.npz"), "logistic", 20, heterogeneous)


def algorithm(name: str, spec: str = S1, **more: Any) -> Any:
    preset = presets.PRESETS[name]
    if name == "sgd":
        return preset.make()
    return preset.make(spec, spec, **more) if preset.two_way else preset.make(spec, **more)


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


def save(folder: Path, name: str, content: dict[str, Any], title: str) -> None:
    """JSON, and a figure if there are curves."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1)
    write_atomically(folder / f"{name}.json", lambda file: file.write(text.encode()))
    report.plot(content["results"], folder / f"{name}.png", title)
    print(content["verdict"], flush=True)
