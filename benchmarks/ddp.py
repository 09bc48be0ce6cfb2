"""Step time of DDP on one machine: plain all-reduce, torch's own hooks, and coded gradients.

    python benchmarks/ddp.py [--steps 6] [--rounds 3] [--worlds 2 4 8] [--mbit 1000 100] [--output results/ddp.json]

The model is a stack of linear layers with 25 million parameters and a small batch, so that communication matters. All methods run in turn,
several rounds of them in the same two processes; a method's time is the best mean over `steps` steps of any round, the slower rank's.
`compute` is the same step without communication. Processor time, of all threads of a rank, is what a step would take on a core nobody else uses.
On loopback once for each number of ranks in --worlds; then two ranks in network namespaces joined by links of --mbit, slow ones in one round of
two steps. At the end one table has all of it, ready for the docs, with the load average it ran under and the bars that were set beforehand: times
of plain all-reduce by two ranks on loopback.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "wan"))
import links
import pair

from perbit.files import write_json
from perbit.torch.collective.buckets import ring_bytes

WIDTH, LAYERS, BATCH = 1024, 24, 8
SPECS = (
    "topk(0.01)",
    "topk(0.01) | qsgd(15) | rans",
    "topk(0.001) | fp16",
    "sign",
    "qsgd(7)",
    "qsgd(15) | rans",
    "uniform(4) | rans",
    "lowrank(4) | fp16",
)
FAST = 1000  # Mbit/s; slower links take long
Rows = list[dict[str, Any]]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def measure(method: str, steps: int) -> dict[str, Any]:
    """Mean seconds of a step after a warm-up that rebuilds the buckets and sizes the messages."""
    model, state = pair.hooked(make_model(), "float32" if method == "compute" else method)
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    target = torch.zeros(BATCH, dtype=torch.long)

    def step() -> None:
        with model.no_sync() if method == "compute" else nullcontext():
            model.zero_grad()
            nn.functional.cross_entropy(model(x), target).backward()

    for _ in range(4):
        step()
    sent, dense = (state.sent_bytes, state.dense_bytes) if state else (0, 0)
    busy = dict(state.seconds) if state else {}
    dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    seconds = torch.tensor([time.perf_counter() - begin, time.process_time() - cpu]) / steps
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    row: dict[str, Any] = {"method": method, "seconds": seconds[0].item(), "cpu_seconds": seconds[1].item()}
    if method == "float32":
        row["bytes"] = ring_bytes(sum(p.numel() for p in model.parameters()), dist.get_world_size())
    if state:
        row["ratio"] = (state.dense_bytes - dense) / (state.sent_bytes - sent)
        row["bytes"] = (state.sent_bytes - sent) / steps
        row |= {f"{what}_seconds": (total - busy[what]) / steps for what, total in state.seconds.items()}
    return row


def rank_main(methods: list[str], steps: int, rounds: int, output: Path) -> None:
    pair.join()
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for method in methods:
            row = measure(method, steps)
            if method in best:
                row["cpu_seconds"] = min(row["cpu_seconds"], best[method]["cpu_seconds"])
            if method not in best or row["seconds"] < best[method]["seconds"]:
                best[method] = row
            best[method]["cpu_seconds"] = row["cpu_seconds"]
    if dist.get_rank() == 0:
        output.write_text(json.dumps(list(best.values())))
    dist.destroy_process_group()


def forked(world: int, work: Callable[[], None]) -> None:
    """Ranks on loopback, as copies of this process: torch is imported once."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = []
    for rank in range(world):
        os.environ["RANK"] = str(rank)
        ranks.append(context.Process(target=_alone, args=(work,)))
        ranks[-1].start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit("a rank failed")


def _alone(work: Callable[[], None]) -> None:
    os.setsid()  # as torchrun does: schedulers that share cores by session take every rank for one of its own
    work()


def run(mbit: float | None, steps: int, rounds: int, methods: list[str], world: int = 2) -> Rows:
    """The rows of all methods, over loopback or over a link."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        arguments = [f"--steps={steps}", f"--rounds={rounds}", f"--rank-output={output}", "--methods", *methods]
        if mbit is None:
            forked(world, lambda: rank_main(methods, steps, rounds, output))
        else:
            links.require()
            with links.Links(clients=2, mbit=mbit, name="bench") as made:
                pair.launch(__file__, arguments, made)
        rows: Rows = json.loads(output.read_text())
    return rows


def show(title: str, rows: Rows) -> None:
    """Print a table, and add what follows from several rows: times float32, and the share of our work that backward hides."""
    known = {row["method"]: row["seconds"] for row in rows}
    print(title)
    for row in rows:
        row["against_float32"] = row["seconds"] / known["float32"]
        coded = ""
        if "ratio" in row and "compute" in known:
            work = row["encode_seconds"] + row["exchange_seconds"]
            row["hidden"] = 1 - (row["seconds"] - known["compute"]) / work
            coded = f"{row['ratio']:8.1f} x fewer bytes, {100 * row['hidden']:3.0f} % of {1e3 * work:.0f} ms overlap"
        times = f"{1e3 * row['seconds']:9.1f} ms{row['against_float32']:8.2f} x, processor {1e3 * row['cpu_seconds']:6.1f} ms"
        sent = f"{row['bytes'] / 1e6:8.2f} MB a rank" if "bytes" in row else ""
        print(f"  {row['method']:<32}{times}{sent}{coded}", flush=True)


def bar(method: str) -> float:
    """At most so many times the step of plain all-reduce, by two ranks on loopback."""
    return 1.1 if method.startswith("topk") else 1.3


def table(settings: dict[str, Rows]) -> str:
    """All settings side by side, in Markdown."""
    lines = ["| |" + "|".join(settings) + "|", "|---|" + "---:|" * len(settings)]
    for index, first in enumerate(next(iter(settings.values()))):
        cells = []
        for rows in settings.values():
            row = rows[index]
            sent = f", {row['bytes'] / 1e6:.2f} MB" if "bytes" in row else ""
            cells.append(f"{1e3 * row['seconds']:.0f} ms, {row['against_float32']:.2f} x{sent}")
        name = first["method"].replace("|", "\\|")
        lines.append(f"|`{name}`|" + "|".join(cells) + "|")
    return "\n".join(lines)


def verdicts(rows: Rows) -> list[str]:
    """Which bars hold."""
    return [
        f"{row['method']}: {row['against_float32']:.2f} x, bar {bar(row['method'])}: "
        + ("holds" if row["against_float32"] <= bar(row["method"]) else "does not hold")
        for row in rows
        if row["method"] in SPECS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 4, 8], help="numbers of ranks on loopback")
    parser.add_argument("--mbit", type=float, nargs="*", default=[1000, 100], help="links between two ranks")
    parser.add_argument("--methods", nargs="+", default=["compute", "float32", "float16", "PowerSGD(4)", *SPECS])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rank-output", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_output:
        rank_main(given.methods, given.steps, given.rounds, given.rank_output)
        return
    torch.set_num_threads(1)  # processes with a pool of threads must not be copied
    parameters = sum(parameter.numel() for parameter in make_model().parameters())
    results: dict[str, Any] = {"parameters": parameters, "threads_per_rank": 1, "cores": os.cpu_count(), "load": {}}
    found: dict[str, Rows] = {}
    settings: list[tuple[float | None, int]] = [(None, world) for world in given.worlds]
    for mbit, world in settings + [(mbit, 2) for mbit in given.mbit]:
        name = f"{world} ranks" if mbit is None else f"{mbit:g} Mbit/s"
        steps, rounds = (given.steps, given.rounds) if mbit is None or mbit >= FAST else (2, 1)
        found[name] = run(mbit, steps, rounds, given.methods, world)
        load = results["load"][name] = os.getloadavg()[0]
        show(f"{name}, {parameters / 1e6:.1f} M parameters, load {load:.1f} on {os.cpu_count()} cores", found[name])
        results["links"] = found
        if given.output:
            write_json(given.output, results)
    print(table(found))
    print("\n".join(verdicts(found.get("2 ranks", []))))


if __name__ == "__main__":
    main()
