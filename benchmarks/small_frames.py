"""What a round of small frames costs: 20 clients, vectors as long as those of phishing, a9a and w8a, both ways by real frames.

    python benchmarks/small_frames.py [--output results/small_frames.json]

Processor time of a round in milliseconds, gradients of mini-batches of 8 included, the least of five runs of 200 rounds; and of a frame (encoded,
decoded and checked by sequence and digest) in microseconds. Nearly all of it is Python around the kernels.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from perbit.files import write_json
from perbit.protocols import presets
from perbit_papers.convex import Problem, Settings, run, synthetic

SPEC = "qsgd(1, bucket=0) | rans"
LENGTHS = {"phishing": 69, "a9a": 124, "w8a": 301}
ALGORITHMS = ("sgd", "diana", "mcm", "artemis", "dore")
CLIENTS, ROUNDS, REPEATS, BATCH = 20, 200, 5, 8


def measured(problem: Problem, name: str) -> dict[str, float]:
    """The least time of a round in milliseconds, and of one of its frames in microseconds."""
    preset = presets.PRESETS[name]
    specs = () if name == "sgd" else (SPEC, SPEC) if preset.two_way else (SPEC,)
    settings = Settings(ROUNDS, 0.01 / problem.smoothness, BATCH, evaluations=1)
    least, frames = float("inf"), 0
    for _ in range(REPEATS):
        began = time.process_time()
        ledger = run(problem, preset.make(*specs), settings)
        least, frames = min(least, time.process_time() - began), int(ledger.counts["frames"].sum())
    return {"ms a round": round(1e3 * least / ROUNDS, 3), "µs a frame": round(1e6 * least / frames, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, d in LENGTHS.items():
        problem = synthetic(n_clients=CLIENTS, n_features=d)
        assert problem.best_loss is not None  # solved before the clock runs
        found[name] = {algorithm: measured(problem, algorithm) for algorithm in ALGORITHMS}
        print(
            f"{name}, d = {d}: " + ", ".join(f"{a} {row['ms a round']} ms" for a, row in found[name].items()),
            flush=True,
        )
    if output:
        write_json(output, found)


if __name__ == "__main__":
    main()
