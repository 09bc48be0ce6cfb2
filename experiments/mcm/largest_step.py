"""The largest step with which each algorithm converges, measured, against what theory allows (MCM's slides, "Limit learning rate").

    python experiments/mcm/largest_step.py [--seeds 0 1 2 3 4]          results/mcm/largest_step.json

Least squares without noise, features alike in all directions, full gradients, N = 10 clients, s = 1 both ways, so ω = √d: 4 and 16. A step
converges if after 300 rounds the excess loss is below that of the start; it is looked for by halving between a sixteenth of theory's step
and 8/L, to within 10 %.

The tests, stated before any run, over seeds at level .05: every algorithm converges with theory's step; MCM's largest step is at least 1.2 times
Dore's and Artemis's at d = 256; and that advantage grows with ω, from d = 16 to 256, by a factor of 1.2 or more (theory: √ω, a factor of 2).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from perbit import theory
from perbit.channels import Direct, Layout
from perbit.files import write_json
from perbit.protocols import presets
from perbit.sim.verdicts import Claim
from perbit_papers.convex import Problem, Settings, run
from perbit_papers.series import Contest, Run

SPEC = "qsgd(1, bucket=0) | rans"
CLIENTS, ROUNDS, WITHIN = 10, 300, 1.1
SIZES = (16, 256)
ALGORITHMS = {"diana": None, "mcm": theory.step_mcm, "artemis": theory.step_degraded, "dore": theory.step_degraded}
LEAST = math.log2(1.2)


def problem_of(d: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(CLIENTS, 4 * d, d))
    return Problem("least_squares", x, x @ rng.normal(size=d))


def allowed(algorithm: str, problem: Problem) -> float:
    """Theory's largest step."""
    omega = Direct(SPEC).omega(Layout.of(problem.n_features))
    bound = ALGORITHMS[algorithm]
    if bound is None:
        return theory.step_unidirectional(problem.smoothness, CLIENTS, omega)
    return bound(problem.smoothness, CLIENTS, omega, omega)


def converges(problem: Problem, algorithm: str, step: float, seed: int) -> bool:
    preset = presets.PRESETS[algorithm]
    protocol = preset.make(SPEC, SPEC) if preset.two_way else preset.make(SPEC)
    excess = run(problem, protocol, Settings(ROUNDS, step, seed=seed, evaluations=10)).excess
    return math.isfinite(excess[-1]) and excess[-1] < excess[0]


def largest(problem: Problem, algorithm: str, seed: int) -> Run:
    """By halving, on a logarithmic scale."""
    bound, high = allowed(algorithm, problem), 8 / problem.smoothness
    low = bound / 16
    while high / low > WITHIN:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if converges(problem, algorithm, middle, seed) else (low, middle)
    return {
        "algorithm": algorithm, "d": problem.n_features, "seed": seed, "largest_times_L": low * problem.smoothness,
        "theory_times_L": bound * problem.smoothness, "at_theory": converges(problem, algorithm, bound, seed),
    }  # fmt: skip


def judged(runs: list[Run], planned: int) -> list[str]:
    def at(name: str, d: int, seed: int) -> float:
        return next(
            math.log2(made["largest_times_L"])
            for made in runs
            if (made["algorithm"], made["d"], made["seed"]) == (name, d, seed)
        )

    n_theory = sum(made["at_theory"] for made in runs)
    said = [f"theory's step converges in {n_theory} of {len(runs)} runs"]
    small, large = SIZES
    for rival in ("dore", "artemis"):
        rows: list[Run] = []
        for seed in sorted({made["seed"] for made in runs}):
            ahead = {d: at("mcm", d, seed) - at(rival, d, seed) for d in SIZES}
            values = {"ahead": ahead[large], "level": 0.0, "ahead at 16": ahead[small]}
            rows += [{"method": name, "seed": seed, "value": value} for name, value in values.items()]

        def value(row: Run) -> float:
            return float(row["value"])

        more = f"MCM's largest step is 1.2 times {rival}'s or more at d = {large}, in log2"
        grows = f"the advantage over {rival} grows by 1.2 or more from d = {small} to {large}, in log2"
        contests = [
            Contest(Claim(more, LEAST), "ahead", "level", value),
            Contest(Claim(grows, LEAST), "ahead", "ahead at 16", value),
        ]
        said += [text for one in contests if (text := one.judged(rows, planned))]
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--output", type=Path, default=Path("results/mcm/largest_step.json"))
    chosen = parser.parse_args()
    settings = {"clients": CLIENTS, "rounds": ROUNDS, "within": WITHIN, "spec": SPEC, "sizes": list(SIZES)}
    known: dict[str, Any] = json.loads(chosen.output.read_text("utf-8")) if chosen.output.is_file() else {}
    runs: list[Run] = known["runs"] if known.get("settings") == settings else []
    done = {(made["algorithm"], made["d"], made["seed"]) for made in runs}
    for seed in chosen.seeds:
        for d in SIZES:
            problem = problem_of(d, seed)
            for algorithm in (a for a in ALGORITHMS if (a, d, seed) not in done):
                runs.append(largest(problem, algorithm, seed))
                found = runs[-1]
                print(f"seed {seed}, d = {d}, {algorithm}: γL = {found['largest_times_L']:.3g}", flush=True)
        said = judged(runs, len(chosen.seeds))
        write_json(chosen.output, {"settings": settings, "verdicts": said, "runs": runs})
    print("\n".join(said))


if __name__ == "__main__":
    main()
