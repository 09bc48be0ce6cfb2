"""The learning rate that is best for float32, by task, on a seed that is used for nothing else.

    python experiments/hundred/rates.py [hapt lenet shakespeare]        what is not in results/hundred_rates.json yet; can be killed

Compressed methods get the same rate: nothing is tuned for them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from perbit.files import write_json
from perbit.sim.compare import config
from perbit.sim.federated import Method, Task, run
from perbit_papers.results import RESULTS

HERE, OUTPUT = Path(__file__).parent, RESULTS / "hundred_rates.json"
SEED = 100
RATES = {"hapt": (0.02, 0.05, 0.1, 0.2), "lenet": (0.03, 0.1, 0.2), "shakespeare": (0.5, 1.0, 2.0, 4.0)}


def final(task: Task) -> dict[str, float]:
    """Accuracy and loss after the last round, without compression."""
    with tempfile.TemporaryDirectory() as folder:
        point = run(task, Method("float32", up="raw", down="raw"), SEED, Path(folder))["history"][-1]
    return {"accuracy": point["accuracy"], "loss": point["loss"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=[*RATES, []], default=list(RATES))
    found: dict[str, Any] = json.loads(OUTPUT.read_text("utf-8")) if OUTPUT.is_file() else {}
    for name in parser.parse_args().tasks:
        task = config.load(str(HERE / f"{name}.toml")).task
        for rate in RATES[name]:
            if str(rate) in found.get(name, {}):
                continue
            found.setdefault(name, {})[str(rate)] = final(replace(task, rate=rate))
            print(f"{name}, rate {rate}: {found[name][str(rate)]}", flush=True)
            write_json(OUTPUT, found)


if __name__ == "__main__":
    main()
