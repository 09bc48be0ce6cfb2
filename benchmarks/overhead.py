"""What compression costs in a federated run of the Table-I CNN: share of the time, and memory for each client.

    python benchmarks/overhead.py [--output results/overhead.json]

Time: encode, decode and the protocol's own work over all measured time, from the runs' timings.jsonl. Memory: what Python and numpy have
allocated (tracemalloc) after the last round with 4 and with 64 clients, in copies of the model for each client beyond float32's; beside it the
number of memories a client has by the protocol's definition (error feedback: one; MCM: h_i at the worker, h_i at the server, H at the worker).
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perbit.files import write_json
from perbit.sim.federated import Method, Task, run

METHODS = {
    "float32": Method("float32"),
    "default": Method("default", "co3", "topk(0.05) | uniform(4) | rans", small="raw", options={"decay": 0.5}),  # perbit.session's
    "mcm": Method("mcm", "mcm", "qsgd(15) | rans", "qsgd(15) | rans"),
}  # fmt: skip
MEMORIES = {"float32": 0, "default": 1, "mcm": 3}
FEW, MANY = 4, 64
COMMON = Task(data="cifar10", model="cnn", batch=32, rate=0.05, train_samples=6400, test_samples=100)
TIMED = replace(COMMON, clients=FEW, rounds=4, local_steps=8, evaluate_every=4)


def weighed(clients: int) -> Task:
    return replace(COMMON, clients=clients, rounds=2, local_steps=1, evaluate_every=2)


def one(name: str, task: Task, weigh: bool) -> dict[str, Any]:
    """Run here, in this process; times, or (traced allocation is slow) the memory of everybody's states."""
    seen: list[Any] = []
    if weigh:
        tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(task, METHODS[name], 0, Path(folder), watch=lambda now, federation: seen.append(federation))
        lines = [json.loads(line) for line in (Path(folder) / "timings.jsonl").read_text().splitlines()]
    compute = sum(sum(line["compute"].values()) for line in lines)
    rest = sum(
        sum(line["receive"].values()) + sum(line["encode"].values()) + line["decode"] + line["server"] for line in lines
    )
    del seen[:-1]
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    return {"share": rest / (compute + rest), "held_bytes": held, "model_bytes": 4 * outcome["n_values"]}


def measured(name: str, task: Task, weigh: bool = False) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", name, json.dumps(asdict(task)), "weigh" if weigh else ""]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def copies(name: str) -> float:
    """How many copies of the model each more client costs."""
    few, many = (measured(name, weighed(clients), weigh=True) for clients in (FEW, MANY))
    return float((many["held_bytes"] - few["held_bytes"]) / (MANY - FEW) / few["model_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/overhead.json"))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], Task(**json.loads(options.one[1])), bool(options.one[2]))))
        return
    rows: list[dict[str, Any]] = []
    for name, n_memories in MEMORIES.items():
        grown = copies(name)
        beyond = grown - rows[0]["copies_per_client"] if rows else 0.0
        share = measured(name, TIMED)["share"]
        row = {
            "method": name,
            "share_of_time": share,
            "copies_per_client": grown,
            "beyond_float32": beyond,
            "memories": n_memories,
        }
        rows.append(row)
        print(f"{name:8}  {100 * share:5.2f} % of the time   {beyond:5.2f} copies of the model a client beyond float32, "
              f"{n_memories} memories", flush=True)  # fmt: skip
    methods = {name: asdict(method) for name, method in METHODS.items()}
    write_json(
        options.output, {"timed": asdict(TIMED), "weighed": asdict(weighed(MANY)), "methods": methods, "rows": rows}
    )


if __name__ == "__main__":
    main()
