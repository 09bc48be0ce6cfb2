"""What biases and batch norm's statistics should be sent as: raw, in half precision, or coded like the weights.

    python benchmarks/small_tensors.py [--output results/small_tensors.json]

The same methods with four settings of `small`, three seeds each: ten clients with different data train a small CNN with batch norm on 8×8 digits.
Small tensors are 3 % of the values, and more of the bytes the harder the weights are compressed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from perbit.sim.compare import config, pool, summary
from perbit.sim.compare.jobs import jobs, n_cores

TASK = """
title = "What small tensors are sent as"
seeds = [0, 1, 2]

[task]
data = "digits"
model = "small_tensors:DigitsCNN"
partition = "dirichlet(0.5)"
clients = 10
rounds = 12
local_epochs = 1
batch = 32
rate = 0.05
momentum = 0.9
evaluate_every = 4

[[methods]]
name = "float32"
"""
METHOD = """
[[methods]]
name = "{name}, small tensors {small}"
protocol = "co3"
decay = 1.0
up = "{up}"
small = "{small}"
"""
UPLINKS = {"4 bits": "uniform(4) | rans", "top 5 %": "topk(0.05) | qsgd(15) | rans"}
SMALL = ("raw", "fp16", "bf16", "same")


class DigitsCNN(nn.Sequential):
    """Three convolutions with batch norm: 75 754 values, 2026 of them in small or one-dimensional tensors."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for n_in, n_out in ((1, 32), (32, 64), (64, 96)):
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
        layers.insert(6, nn.MaxPool2d(2))
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))


def comparison() -> config.Comparison:
    methods = (METHOD.format(name=name, up=up, small=small) for name, up in UPLINKS.items() for small in SMALL)
    return config.parse(TASK + "".join(methods), "small_tensors.toml")


def measure(processes: int) -> tuple[list[dict[str, Any]], str]:
    """A row for each method, and the table."""
    asked = comparison()
    with tempfile.TemporaryDirectory() as folder:
        todo = jobs(asked, Path(folder), resume=False)
        outcomes = pool.run_all(todo, processes, lambda report: None)
        found = summary.rows(asked, outcomes, [job.folder for job in todo])
    n_seeds = len(asked.seeds)
    rows = [
        {
            "method": row.method.name,
            "up": row.method.up,
            "small": row.method.small,
            "accuracy": row.accuracy,
            "accuracies": [run["history"][-1]["accuracy"] for run in outcomes[n_seeds * i : n_seeds * (i + 1)]],
            "diverged": row.diverged,
            "mb_up": row.mb_up,
            "times_less": row.times_less,
        }
        for i, row in enumerate(found)
    ]
    return rows, summary.table(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/small_tensors.json"))
    parser.add_argument("--processes", type=int, default=n_cores())
    given = parser.parse_args()
    rows, table = measure(given.processes)
    print(table)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
