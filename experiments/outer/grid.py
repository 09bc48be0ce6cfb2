"""Six ways to train a small GPT with four workers: the loss that is reached, and the bytes that it takes.

    python experiments/outer/grid.py --tune          the outer rate of float32 DiLoCo, on a seed that is used for nothing else
    python experiments/outer/grid.py                 the runs that are not in the JSON yet, then the verdicts
    python experiments/outer/grid.py --verdicts      the verdicts on what is there

Four gloo processes on loopback, one thread each, run the engine as users do. Model, data, batches, local optimizer and number of tokens are
the same for all methods of a seed: every worker draws windows from its own quarter of Shakespeare, AdamW with a warm-up and a cosine.

The claims were stated before the first run. Losses are those of the shared model on the same 8192 held-out characters.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

import perbit.outer
from perbit.files import write_json
from perbit.sim.verdicts import Claim
from perbit.torch.collective.buckets import ring_bytes

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples" / "outer"))
from gpt import GPT, Text, loss_of  # what users start from is what is measured

WORKERS, STEPS, BATCH, LENGTH = 4, 600, 4, 64
RATE, WARM_UP = 4e-3, 40  # of the local AdamW
ROUNDS_OF, SEEDS, TUNING_SEED = (30, 15, 100), (0, 1, 2), 100
OUTER_RATES = (0.1, 0.2, 0.4, 0.7, 1.0)
OUTER_RATE = 0.2  # of the tuning runs with H = 30: losses 2.510 (0.2) and 2.528 (0.4)
OUTPUT, TUNING_OUTPUT = Path("results/outer.json"), Path("results/outer_tuning.json")

# How LocalSteps is set up: a preset and what differs from it.
LOCAL = {
    "diloco": ("diloco", {"rate": OUTER_RATE}),
    "local_sgd": ("local_sgd", {}),  # no claim: the plain mean of all models, which has nothing to tune
    "sparseloco": ("sparseloco", {}),
    "ours": ("rd", {}),
}
CLAIMS = {
    "ours": Claim("ours ends within 0.5 % of the loss of float32 DiLoCo", least=-0.005),
    "sparseloco": Claim("sparseloco ends within 0.5 % of the loss of float32 DiLoCo", least=-0.005),
}
FEWER_BYTES = 300  # times, per sync, frames and headers counted


class Run:
    """One worker of one run."""

    def __init__(
        self,
        method: str,
        every: int,
        seed: int,
        settings: dict[str, Any],
        text: Text,
        *,
        width: int = 128,
        depth: int = 3,
        steps: int = STEPS,
    ) -> None:
        torch.manual_seed(seed)
        self.steps = steps  # of the schedule
        self.text, self.rank = text, dist.get_rank()
        self.module = GPT(text.symbols, LENGTH, width=width, depth=depth)
        self.n = sum(weight.numel() for weight in self.module.parameters())
        self.model: nn.Module = self.module
        self.outer, self.power = None, None
        if method in ("ddp", "powersgd"):
            self.model = DistributedDataParallel(self.module, bucket_cap_mb=1000)
            if method == "powersgd":
                self.power = powersgd.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
                self.model.register_comm_hook(self.power, powersgd.powerSGD_hook)
        else:
            preset, changes = LOCAL[method]
            self.outer = perbit.outer.preset(preset, self.module, seed=seed, every=every, **changes | settings)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
        self.random = torch.Generator().manual_seed(1000 * seed + self.rank)

    def step(self, number: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * schedule(number, self.steps)
        x, y = self.text.batch(BATCH, LENGTH, self.rank, WORKERS, self.random)
        self.optimizer.zero_grad()
        loss_of(self.model(x), y).backward()
        self.optimizer.step()
        if self.outer:
            self.outer.step()

    @torch.no_grad()
    def loss(self) -> float:
        """Of the shared model."""
        x, y = self.text.test(128, LENGTH)
        with self.outer.shared_values() if self.outer else nullcontext():
            return float(loss_of(self.module(x), y))

    def sent_bytes(self, steps: int) -> float:
        """Of one worker. What torch sends itself is counted as the ring that gloo runs."""
        if self.outer:
            return self.outer.metrics()["total_bytes"]
        if self.power:
            _, _, after = self.power.compression_stats()
            return ring_bytes(int(after), WORKERS) + 2 * ring_bytes(self.n, WORKERS)
        return steps * ring_bytes(self.n, WORKERS)


def schedule(number: int, steps: int) -> float:
    """A straight warm-up, then a cosine down to a tenth."""
    if number < WARM_UP:
        return (number + 1) / WARM_UP
    return 0.55 + 0.45 * math.cos(math.pi * (number - WARM_UP) / (steps - WARM_UP))


def measured(method: str, every: int, seed: int, settings: dict[str, Any], text: Text) -> dict[str, Any]:
    run, begin, curve = Run(method, every, seed, settings, text), time.perf_counter(), []
    for number in range(STEPS):
        run.step(number)
        if (number + 1) % 100 == 0 and dist.get_rank() == 0:
            curve.append(run.loss())
    syncs = STEPS // every
    assert STEPS % every == 0
    sent = run.sent_bytes(STEPS)
    return {
        "method": method,
        "every": every,
        "seed": seed,
        "settings": settings,
        "values": run.n,
        "loss": curve[-1] if curve else None,
        "curve": curve,
        "syncs": syncs,
        "bytes_per_sync": sent / syncs,
        "frame_bytes": sent / syncs / (WORKERS - 1) if run.outer else None,
        "bytes": sent,
        "seconds": time.perf_counter() - begin,
    }


def planned() -> Iterator[tuple[str, int, int]]:
    """What the claims need comes first."""
    for every in ROUNDS_OF:
        for seed in SEEDS:
            for method in LOCAL:
                yield method, every, seed
    for method in ("ddp", "powersgd"):
        for seed in SEEDS:
            yield method, 1, seed


def key(method: str, every: int, seed: int) -> str:
    return f"{method} H={every} seed={seed}"


def worker(rank: int, port: int, output: Path, tasks: list[tuple[str, int, int, dict[str, Any]]]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    perbit.set_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    text = Text()
    for method, every, seed, settings in tasks:
        row = measured(method, every, seed, settings, text)
        if rank == 0:
            name = key(method, every, seed) + (f" {json.dumps(settings)}" if settings else "")
            add(output, name, row)
            print(
                f"{name}: loss {row['loss']:.4f}, {row['bytes_per_sync']:.0f} bytes a sync, {row['seconds']:.0f} s",
                flush=True,
            )
    dist.destroy_process_group()


def read(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {"runs": {}}
    return found


def add(output: Path, name: str, row: dict[str, Any]) -> None:
    """Two calls of this script may share the work."""
    with output.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read(output)
        found["runs"][name] = row
        write_json(output, found)


def execute(output: Path, tasks: list[tuple[str, int, int, dict[str, Any]]]) -> None:
    if not tasks:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, (port, output, tasks), nprocs=WORKERS)


def verdicts(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Relative losses, seed by seed, of the seeds that are there."""
    for every in sorted(ROUNDS_OF):
        seeds = [seed for seed in SEEDS if all(key(method, every, seed) in runs for method in LOCAL)]
        if not seeds:
            continue
        rows = {method: [runs[key(method, every, seed)] for seed in seeds] for method in LOCAL}
        plain = rows["diloco"]
        yield f"H = {every}, {len(seeds)} seeds; {plain[0]['values']} values"
        for method, of in rows.items():
            loss = sum(row["loss"] for row in of) / len(of)
            fewer = plain[0]["bytes_per_sync"] / (sum(row["bytes_per_sync"] for row in of) / len(of))
            ring = ring_bytes(plain[0]["values"], WORKERS) / (sum(row["bytes_per_sync"] for row in of) / len(of))
            yield f"  {method:<12}loss {loss:.4f}, {fewer:7.1f} x fewer bytes per sync than float32 frames, {ring:7.1f} x than a float32 ring"
        for method, claim in CLAIMS.items():
            better = [p["loss"] / row["loss"] - 1 for p, row in zip(plain, rows[method], strict=True)]
            yield f"  {claim.judged(better, [0.0] * len(better))}"
        if all(key("ddp", 1, seed) in runs for seed in seeds):
            ddp = [runs[key("ddp", 1, seed)] for seed in seeds]
            away = sum(row["loss"] / d["loss"] - 1 for row, d in zip(rows["ours"], ddp, strict=True)) / len(seeds)
            fewer = ddp[0]["bytes"] / (sum(row["bytes"] for row in rows["ours"]) / len(seeds))
            yield f"  against DDP in float32 at every step: {fewer:.0f} x fewer bytes in all, loss {100 * away:+.2f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--try", dest="tried", nargs="+", help="METHOD EVERY JSON …: other settings on the tuning seed")
    parser.add_argument(
        "--every", type=int, nargs="+", default=[1, *ROUNDS_OF], help="only runs of this H (1: the two of DDP)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--methods", nargs="+", default=["ddp", "powersgd", *LOCAL])
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    given.output = given.output or (TUNING_OUTPUT if given.tune or given.tried else OUTPUT)
    found = read(given.output)["runs"]
    if given.tune:
        execute(given.output, [("diloco", 30, TUNING_SEED, {"rate": rate}) for rate in OUTER_RATES])
    elif given.tried:
        method, every, *settings = given.tried
        execute(given.output, [(method, int(every), TUNING_SEED, json.loads(each)) for each in settings])
    elif not given.verdicts:
        wanted = [
            run for run in planned() if run[0] in given.methods and run[1] in given.every and run[2] in given.seeds
        ]
        execute(given.output, [(*run, {}) for run in wanted if key(*run) not in found])
    print("\n".join(verdicts(read(given.output)["runs"])))


if __name__ == "__main__":
    main()
