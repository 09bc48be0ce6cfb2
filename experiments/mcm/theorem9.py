"""Theorem 9: what the downlink adds falls with the number C of different draws: 1 for MCM, G for groups, N for Rand-MCM.

    python experiments/mcm/theorem9.py [--seeds 0 1 2 3 4]          results/mcm/theorem9.json

Least squares, N = 20 clients, d = 20, s = 1, γ = .05/L, mini-batches of 4. Measured in every round after the first fifth: |mean of ŵ_i - w|², the
error that the clients' gradients see together, over the mean of |ŵ_i - w|², the error of one of them. With C independent draws the ratio is 1/C.

The tests, stated before any run, over seeds at level .05: the ratio times C is at most 1.25, and at least .8; and the excess loss of the mean of
all iterates, which the theorem bounds, is with Rand-MCM at most .1 decades worse than with MCM.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from perbit.files import write_json
from perbit.protocols import presets
from perbit.sim.verdicts import Claim
from perbit_papers.convex import Problem, Settings, run, synthetic
from perbit_papers.convex.run import ConvexProgress
from perbit_papers.series import Contest, Run

SPEC = "qsgd(1, bucket=0) | rans"
CLIENTS, STEP, BATCH = 20, 0.05, 4
METHODS: dict[str, tuple[str, dict[str, Any], int]] = {  # preset, its options, C
    "MCM": ("mcm", {}, 1),
    "2 groups": ("rand_mcm_groups", {"groups": 2}, 2),
    "5 groups": ("rand_mcm_groups", {"groups": 5}, 5),
    "Rand-MCM": ("rand_mcm", {}, CLIENTS),
}
WIDE = math.log(1.25)


def off_by(sign: float) -> Any:
    """log(C · ratio) of a run, or its negative."""
    return lambda run: sign * math.log(run["C"] * run["ratio"])


def claims() -> list[Contest]:
    """Each against a pretended method that has exactly 1/C."""
    found = []
    for name, (_, _, c) in METHODS.items():
        if c == 1:
            continue
        found.append(Contest(Claim(f"Theorem 9, {name}: at most 1.25/{c}", -WIDE), name, "theory", off_by(-1)))
        found.append(Contest(Claim(f"Theorem 9, {name}: at least .8/{c}", -WIDE), name, "theory", off_by(1)))
    text = "Theorem 9: Rand-MCM's mean iterate is at most .1 decades worse than MCM's"
    return [*found, Contest(Claim(text, -0.1), "Rand-MCM", "MCM", lambda run: -math.log10(run["mean_excess"]))]


def measured(problem: Problem, name: str, seed: int, rounds: int) -> Run:
    preset, more, c = METHODS[name]
    settings = Settings(rounds, STEP / problem.smoothness, BATCH, seed=seed, average=True)
    models = [np.zeros(problem.n_features)]  # the one that was sent is that of before the round
    together, single = [], []

    def look(now: ConvexProgress) -> None:
        away = np.stack([client.point for client in now.clients]).astype(np.float64) - models[0]
        models[0] = now.server.model
        if now.done > rounds // 5:
            together.append(float(np.sum(away.mean(0) ** 2)))
            single.append(float(np.mean(np.sum(away**2, 1))))

    ledger = run(problem, presets.PRESETS[preset].make(SPEC, SPEC, **more), settings, after_round=look)
    ratio = statistics.fmean(together) / statistics.fmean(single)
    excess = ledger.mean_loss[-1] - problem.best_loss
    return {
        "method": name, "seed": seed, "C": c, "ratio": ratio, "together": statistics.fmean(together),
        "single": statistics.fmean(single), "mean_excess": excess, "excess": ledger.stationary(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--output", type=Path, default=Path("results/mcm/theorem9.json"))
    chosen = parser.parse_args()
    settings = {"rounds": chosen.rounds, "clients": CLIENTS, "step": STEP, "batch": BATCH, "spec": SPEC}
    runs: list[Run] = []
    if chosen.output.is_file():
        known = json.loads(chosen.output.read_text("utf-8"))
        runs = known["runs"] if known["settings"] == settings else []
    done = {(run["method"], run["seed"]) for run in runs}
    for seed in chosen.seeds:
        problem = synthetic(n_clients=CLIENTS, seed=seed)
        for name in (name for name in METHODS if (name, seed) not in done):
            runs.append(measured(problem, name, seed, chosen.rounds))
            print(f"seed {seed}, {name}: C · ratio {runs[-1]['C'] * runs[-1]['ratio']:.3f}", flush=True)
        theory = [{"method": "theory", "seed": run["seed"], "C": 1, "ratio": 1.0, "mean_excess": 1.0} for run in runs]
        said = [text for one in claims() if (text := one.judged([*runs, *theory], len(chosen.seeds)))]
        write_json(chosen.output, {"settings": settings, "verdicts": said, "runs": runs})
    print("\n".join(said))


if __name__ == "__main__":
    main()
