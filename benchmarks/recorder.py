"""What the recorder of `perbit compare --statistics` costs beside training, when it looks once an epoch.

    python benchmarks/recorder.py [--model cnn] [--data cifar10] [--output results/recorder.json]

One thread. Times the gradient of a mini-batch and one look at the same gradient with a memory, and prints the share: look / (steps in an
epoch · step). The budget is 5 %, on data whose epoch has hundreds of steps; digits with its dozen does not hold it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from perbit.files import write_json
from perbit.sim.federated import Task, local, tensors, world
from perbit.sim.federated.statistics import lines, rounds_in_epoch

REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = Task(data=options.data, model=options.model, clients=2, local_epochs=0, batch=options.batch)
    place = world.build(task, 0)
    step = look = float("inf")
    for repeat in range(REPEATS):
        start = time.process_time()
        local.gradient(place.network, place.data, place.parts[0], task, repeat)
        middle = time.process_time()
        update = tensors.gradients(place.network, place.first)
        memory = {name: np.float32(0.5) * values for name, values in update.items()}
        before = time.process_time()
        lines(1, 1, update, 0.7, memory)
        step, look = min(step, middle - start), min(look, time.process_time() - before)
    steps = rounds_in_epoch(task, place)
    share = look / (steps * step)
    times = f"a step {1e3 * step:.1f} ms, a look {1e3 * look:.1f} ms, {steps} steps in an epoch"
    print(f"{options.model} on {options.data}: {times}: {share:.2%} of training")
    if options.output:
        write_json(
            options.output,
            {"model": options.model, "data": options.data, "step": step, "look": look, "steps": steps, "share": share},
        )


if __name__ == "__main__":
    main()
