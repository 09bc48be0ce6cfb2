"""Fig. 7: NCF's gradients on four nodes, over links of 100 and 1000 Mbit/s: time to encode, to exchange, to decode.

    python experiments/deepreduce/fig7.py --gradients FOLDER          results/deepreduce/fig7.json; needs root (network namespaces)

Every node is a process in a network namespace, its link a token bucket. float32 is summed by gloo's all-reduce; frames are gathered by gloo, and
every node decodes all four. Coding counts processor time, since the four share the machine's cores; the exchange counts wall time, and of all
repetitions the shortest. Nodes send the same recorded gradient (MovieLens 100K; the paper: 20M, and up to 10 Gbit/s).

What holds is stated here, before the run: at 100 Mbit/s, Bloom P0 with QSGD takes less time in all than float32; and it gains less at 1000.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common import Tensors, read, verdict

import perbit
from perbit.files import write_json
from perbit.plan.plan import Plan

sys.path.insert(0, str(Path(__file__).parents[1] / "wan"))
from links import Links, require

NODES, REPEATS, PORT = 4, 7, "29591"
RATES = (100, 1000)  # Mbit/s
FLOAT32, OURS = "float32", "Bloom P0 + QSGD, FPR .6"
METHODS = {
    FLOAT32: "",
    "top 10 %, 32-bit positions": "topk(0.1, positions=raw32)",
    OURS: 'nonzero(positions=bloom("p0", 0.6)) | qsgd(127) | pack',
    "SKCompress, 128 quantiles": "skcompress(bins=128)",
}
Times = dict[str, float]


def summed(flat: torch.Tensor) -> Times:
    began = time.perf_counter()
    dist.all_reduce(flat.clone())
    return {"exchange": time.perf_counter() - began}


def gathered(tensors: Tensors, spec: str) -> Times:
    """Encode, gather lengths and frames of all nodes, decode them all."""
    plan = Plan.of(spec, small_below=1000)
    clock = time.process_time()
    frame = perbit.dumps(tensors, plan, seed=1)
    times = {"encode": time.process_time() - clock, "n_bytes": float(len(frame))}
    began = time.perf_counter()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(NODES)]
    dist.all_gather(lengths, torch.tensor([len(frame)]))
    room = int(max(int(length) for length in lengths))
    padded = torch.zeros(room, dtype=torch.uint8)
    padded[: len(frame)] = torch.from_numpy(np.frombuffer(frame, np.uint8).copy())
    frames = [torch.empty(room, dtype=torch.uint8) for _ in range(NODES)]
    dist.all_gather(frames, padded)
    times["exchange"] = time.perf_counter() - began
    clock = time.process_time()
    for got, length in zip(frames, lengths, strict=True):
        perbit.loads(got[: int(length)].numpy().tobytes())
    return {**times, "decode": time.process_time() - clock}


def node(rank: int, folder: Path, output: Path) -> None:
    """What runs in a namespace; node 0 writes its times."""
    torch.set_num_threads(1)
    perbit.set_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=NODES)
    tensors = read(folder, "ncf_movielens.npz")
    flat = torch.from_numpy(np.concatenate([x.ravel() for x in tensors.values()]).astype(np.float32))
    found: dict[str, Times] = {}
    for name, spec in METHODS.items():
        rounds = []
        for _ in range(REPEATS + 1):  # the first one warms up
            dist.barrier()
            rounds.append(gathered(tensors, spec) if spec else summed(flat))
        found[name] = {part: min(times[part] for times in rounds[1:]) for part in rounds[0]}
        found[name].setdefault("n_bytes", 4.0 * flat.numel())
    if rank == 0:
        write_json(output, found)
    dist.barrier()
    dist.destroy_process_group()


def measured(folder: Path, mbit: float) -> dict[str, Times]:
    """All methods over links of this rate."""
    with tempfile.TemporaryDirectory() as temporary, Links(clients=NODES, mbit=mbit) as links:
        output = Path(temporary) / "times.json"
        where = {
            "MASTER_ADDR": links.address(0),
            "MASTER_PORT": PORT,
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        nodes = []
        try:
            for rank in range(NODES):
                command = [
                    sys.executable,
                    __file__,
                    "--gradients",
                    str(folder),
                    "--node",
                    str(rank),
                    "--output",
                    str(output),
                ]
                nodes.append(subprocess.Popen(links.command(rank, command), env=os.environ | where))
            if any(process.wait() for process in nodes):
                raise SystemExit("a node failed")
        finally:
            for process in nodes:
                process.kill()
        found: dict[str, Times] = json.loads(output.read_text("utf-8"))
        return found


def total(times: Times) -> float:
    return sum(times.get(part, 0.0) for part in ("encode", "exchange", "decode"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--gradients", type=Path, required=True, help="folder with ncf_movielens.npz (tools/make_gradients.py)"
    )
    parser.add_argument("--output", type=Path, default=Path("results/deepreduce/fig7.json"))
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.node is not None:
        node(chosen.node, chosen.gradients, chosen.output)
        return
    require()
    rates: dict[str, Any] = {}
    for mbit in RATES:
        rates[f"{mbit} Mbit/s"] = found = measured(chosen.gradients.resolve(), mbit)
        for name, times in found.items():
            parts = ", ".join(f"{part} {1000 * times.get(part, 0.0):.1f}" for part in ("encode", "exchange", "decode"))
            print(
                f"{mbit:5} Mbit/s  {name:<28}{times['n_bytes'] / 1e6:7.3f} MB  {parts}, in all {1000 * total(times):.1f} ms",
                flush=True,
            )
    slow, fast = (total(times[FLOAT32]) / total(times[OURS]) for times in rates.values())
    verdicts = [
        verdict(slow > 1, f"Fig. 7: {OURS} is faster than float32 at 100 Mbit/s", f"{slow:.2f} times"),
        verdict(slow > fast, "Fig. 7: it gains less at 1000 Mbit/s", f"{fast:.2f} times"),
    ]
    write_json(
        chosen.output, {"load": Path("/proc/loadavg").read_text().split()[0], "rates": rates, "verdicts": verdicts}
    )


if __name__ == "__main__":
    main()
