"""What local steps cost in memory beside plain training, in copies of the model.

    python benchmarks/outer_memory.py [--values 8000000] [--presets sparseloco rd diloco]

Each preset trains in a fresh process that is a group of its own. `kept` is what stays between rounds, `peak` the most at any time, both beyond
what the process had after its first local steps, when model, gradients and the local optimizer are there.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import multiprocessing.connection
import resource
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import perbit.outer
from perbit.files import write_json


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measured(preset: str, values: int, answer: mp.connection.Connection) -> None:
    torch.set_num_threads(1)
    with tempfile.NamedTemporaryFile() as rendezvous:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous.name}", rank=0, world_size=1)
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
    outer = perbit.outer.preset(preset, model, every=2)
    for _ in range(4):
        local_step()
        outer.step()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    answer.send(
        {"preset": preset, "kept": (resident() - before) / copy, "peak": (1024 * int(peak.split()[1]) - before) / copy}
    )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=8_000_000)
    parser.add_argument("--presets", nargs="+", default=["sparseloco", "rd", "diloco"])
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
        print(f"{preset:<12}kept {rows[-1]['kept']:.2f} models, peak {rows[-1]['peak']:.2f}", flush=True)
    if given.output:
        write_json(given.output, rows)


if __name__ == "__main__":
    main()
