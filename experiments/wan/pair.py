"""DDP ranks that compare methods: how gradients travel by name, and all processes over loopback or over links."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from links import Links
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

import perbit
from perbit.engines import ddp

PORT = "29577"


def hooked(module: nn.Module, method: str) -> tuple[DistributedDataParallel, ddp.State | None]:
    """The model with the hook of a method: `float32` (plain), `float16`, `PowerSGD(rank)`, or a spec of perbit."""
    is_power = method.startswith("PowerSGD")
    # PowerSGD issues collectives from callbacks: with several buckets gloo's ranks would run out of step
    model = DistributedDataParallel(module, bucket_cap_mb=1000 if is_power else None)
    if method == "float16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif is_power:
        power = powersgd.PowerSGDState(None, int(method[9:-1]), start_powerSGD_iter=2)
        model.register_comm_hook(power, powersgd.powerSGD_hook)
    elif method != "float32":
        state = ddp.State(method, model)
        model.register_comm_hook(state, ddp.hook)
        return model, state
    return model, None


def join() -> None:
    """Called by each rank first."""
    torch.set_num_threads(1)
    perbit.set_threads(1)
    dist.init_process_group("gloo")


def bytes_on_wire(device: str) -> int:
    """What this network namespace has sent through a device, headers included."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == device:
            return int(numbers.split()[8])
    raise ValueError(f"no network device {device!r}")


def launch(script: str, arguments: list[str], links: Links | None = None, world: int = 2) -> None:
    """Run a script as ranks 0, 1, …, over loopback or each in its namespace, and wait for all."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(world),
        "MASTER_PORT": PORT,
        "MASTER_ADDR": links.address(0) if links else "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "eth0" if links else "lo",
    }
    command = [sys.executable, script, *arguments]
    ranks = []
    try:
        for rank in range(world):
            prefixed = links.command(rank, command) if links else command
            ranks.append(subprocess.Popen(prefixed, env=environment | {"RANK": str(rank)}))
        if any(rank.wait() for rank in ranks):
            raise SystemExit("a rank failed")
    finally:
        for process in ranks:
            process.kill()
