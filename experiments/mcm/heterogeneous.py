"""Why the uplink memory: on heterogeneous clients with full gradients QSGD stalls, DIANA (and Artemis, MCM) converge.

    python experiments/mcm/heterogeneous.py --data FOLDER

On synthetic least squares (every client its own truth), and on phishing split by likeness.
"""

from __future__ import annotations

from typing import Any

from common import dataset, measure, options, save

from perbit_papers.convex import Settings, synthetic

ALGORITHMS = ("sgd", "qsgd", "diana", "artemis", "mcm")


def verdict(name: str, results: list[dict[str, Any]]) -> str:
    """QSGD must be behind, and DIANA near what full precision reaches in as many rounds."""
    got = {result["algorithm"]: result["log10_excess"] for result in results}
    good = got["qsgd"] > got["diana"] + 0.2 and got["diana"] < got["sgd"] + 0.2
    words = "agrees: QSGD stalls where DIANA goes on" if good else "does NOT agree: QSGD keeps up with DIANA"
    return f"{name}: {words}; log10 excess {got}"


def main() -> None:
    arguments = options(__doc__ or "").parse_args()
    problems = {
        "least_squares": (synthetic(heterogeneous=True, seed=arguments.seed), 1500, 0.2),
        "phishing": (dataset(arguments.data, "phishing", heterogeneous=True), 800, 0.5),
    }
    for name, (problem, rounds, step) in problems.items():
        print(f"{name}: {rounds} rounds")
        settings = Settings(rounds, step / problem.smoothness, seed=arguments.seed)
        results = [measure(problem, algorithm, settings) for algorithm in ALGORITHMS]
        content = {"problem": name, "verdict": verdict(name, results), "results": results}
        save(arguments.output, f"heterogeneous_{name}", content, f"{name}, heterogeneous, full gradients, s = 1")


if __name__ == "__main__":
    main()
