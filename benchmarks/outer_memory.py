"""What local steps cost in memory beside plain training, in copies of the model.

    python benchmarks/outer_memory.py [--values 10000000] [--presets sparseloco rd] [--output results/outer_memory.json]

Each preset trains in a fresh process that is a group of its own, two rounds long. `held` is the most that its tensors took after any step, counted:
the shared model, the state of the outer optimizer, error memories, and a fragment under way. `kept` is what the process has more at the end, `peak`
the most it had more at any time, also within an exchange; both beyond what it had after its first local steps, when model, gradients and the
local optimizer are there. The bar, set beforehand: two copies held.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import multiprocessing.connection
import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import perbit.outer
from perbit.files import write_json

EVERY = 24  # local steps
BAR = 2  # copies of the model


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def held(outer: perbit.outer.LocalSteps) -> dict[str, int]:
    """Bytes by what they are for."""
    flight = outer._flight
    return {
        "shared": size(outer.shared.values()),
        "momentum": size(x for state in outer.optimizer.state.values() for x in state.values()),
        "memories": sum(array.nbytes for array in outer.memory.memories.copies().values()),
        "under way": size((*flight.change.values(), *flight.buffers.values())) if flight else 0,
    }


def size(tensors: Iterable[object]) -> int:
    return sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))


def measured(preset: str, values: int, answer: mp.connection.Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    side = round((values / 4) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(4)))
    copy = 4 * sum(x.numel() for x in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())

    def local_step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, side)).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        local_step()
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    outer = perbit.outer.preset(preset, model, every=EVERY)
    most: dict[str, int] = {}
    for number in range(1, 2 * EVERY + 1):
        if number % 6 == 0:  # before anything is sent; other steps need no memory of their own
            local_step()
        outer.step()
        most = max(most, held(outer), key=lambda found: sum(found.values()))
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    seen = {"kept": resident() - before, "peak": 1024 * int(peak.split()[1]) - before}
    found = {**most, "held": sum(most.values()), **seen}
    answer.send({"preset": preset, **{name: n / copy for name, n in found.items()}})
    dist.destroy_process_group()


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    more = [row["preset"] for row in rows if row["held"] > BAR]
    return f"at most {BAR} models: " + (f"not {', '.join(more)}" if more else "holds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--presets", nargs="+", default=list(perbit.outer.PRESETS))
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows = []
    for preset in given.presets:
        ours, theirs = mp.get_context("spawn").Pipe()
        process = mp.get_context("spawn").Process(target=measured, args=(preset, given.values, theirs))
        process.start()
        theirs.close()
        rows.append(ours.recv())
        process.join()
        parts = ", ".join(f"{name} {n:.2f}" for name, n in rows[-1].items() if name not in ("preset", "held"))
        print(f"{preset:<12}holds {rows[-1]['held']:.2f} models: {parts}", flush=True)
    print(verdict(rows))
    if given.output:
        write_json(given.output, rows)


if __name__ == "__main__":
    main()
