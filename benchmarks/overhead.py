"""What compression costs in a federated run of the Table-I CNN: share of the time, and memory for each client.

    python benchmarks/overhead.py [--output results/overhead.json]

Time: encode, decode and the protocol's own work over all measured time, from the runs' timings.jsonl. Memory: what a
process holds after the last round with 4 and with 64 clients, in copies of the model for each client; and the same beyond float32's.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from perbit.report.results import write_json
from perbit.sim.federated import Method, Task, run

METHODS = {
    "float32": Method("float32"),
    "default": Method("default", "co3", "topk(0.05) | qsgd(7) | rans", options={"decay": 1.0}),
    "mcm": Method("mcm", "mcm", "qsgd(15) | rans", "qsgd(15) | rans"),
}
FEW, MANY = 4, 64


def task(clients: int) -> Task:
    return Task(
        data="cifar10", model="cnn", clients=clients, rounds=2, batch=32, train_samples=640, test_samples=100, evaluate_every=2
    )  # fmt: skip


def one(name: str, clients: int) -> dict[str, Any]:
    """Run here, in this process; times, and the memory of everybody's states."""
    seen: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(task(clients), METHODS[name], 0, Path(folder), watch=lambda now: seen.append(now))
        lines = [json.loads(line) for line in (Path(folder) / "timings.jsonl").read_text().splitlines()]
    compute = sum(sum(line["compute"].values()) for line in lines)
    rest = sum(
        sum(line["receive"].values()) + sum(line["encode"].values()) + line["decode"] + line["server"] for line in lines
    )
    del seen[:-1]
    gc.collect()
    held = psutil.Process().memory_info().rss
    return {"share": rest / (compute + rest), "held_bytes": held, "model_bytes": 4 * outcome["n_values"]}


def measured(name: str, clients: int) -> dict[str, Any]:
    """The same in a process of its own, so that peaks do not mix."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, str(clients)], check=True, capture_output=True, text=True
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/overhead.json"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]))))
        return
    rows, base = [], {}
    for name in METHODS:
        few, many = measured(name, FEW), measured(name, MANY)
        growth = (many["held_bytes"] - few["held_bytes"]) / (MANY - FEW) / few["model_bytes"]
        base = base or {"growth": growth}
        row = {
            "method": name,
            "share_of_time": few["share"],
            "copies_per_client": growth,
            "beyond_float32": growth - base["growth"],
        }
        rows.append(row)
        print(f"{name:8}  {100 * row['share_of_time']:5.2f} % of the time   {growth:5.2f} copies of the model a client, "
              f"{row['beyond_float32']:5.2f} beyond float32")  # fmt: skip
    write_json(
        options.output, {"task": asdict(task(FEW)), "methods": {k: asdict(m) for k, m in METHODS.items()}, "rows": rows}
    )


if __name__ == "__main__":
    main()
