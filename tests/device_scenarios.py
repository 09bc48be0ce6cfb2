"""What the ranks do in tests/test_device_training.py: functions that a fresh process can import."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ddp_scenarios import coded, gradients_of, normal
from fake_device import FakeDevice
from perbit import Plan
from perbit.engines import ddp, fsdp
from perbit.torch import Memory, all_reduce
from perbit.torch.collective.devices import Resident
from perbit.torch.device import using

SHAPES: dict[str, tuple[int, ...]] = {"a": (40, 30), "b": (7,), "c": (9, 130)}
STEPS = 2


def averaged(kinds: tuple[str, ...], spec: str | Plan) -> list[Any]:
    """Means, memories and bytes of some calls of `all_reduce`, with device kernels on these kinds of devices."""
    memory = Memory(seed=3)
    found: list[Any] = []
    with using(*kinds):
        for step in range(STEPS):
            tensors = normal(SHAPES, 10 * step + dist.get_rank())
            found.append(all_reduce(tensors, spec, memory=memory)["bytes"])
            found.append(bits(tensors))
        found.append(bits(memory.state_dict()["memory"]))
        found.append(memory.metrics()["memory_norm"])
    return found


def in_ddp(
    kinds: tuple[str, ...], spec: str, dtype: torch.dtype = torch.float32, late: bool | None = None
) -> list[Any]:
    """Gradients and memories of some steps in DDP; `late`: on a device that does everything as late as it may."""
    usual = ddp.staging_for
    if late is not None:
        ddp.staging_for = lambda device, codec=None: Resident(FakeDevice(is_early=not late))
    found: list[Any] = []
    try:
        with using(*kinds), coded(SHAPES, spec, dtype, seed=3) as (model, state):
            for step in range(STEPS):
                model.zero_grad()
                model(normal(SHAPES, 10 * step + dist.get_rank(), dtype)).backward()
                found.append(bits(gradients_of(model)))
            found.append(bits(state.state_dict()["memory"]))
            resident = type(state._running.staging).__name__ if state._running else ""
    finally:
        ddp.staging_for = usual
    return [*found, resident]


def in_fsdp(kinds: tuple[str, ...], spec: str) -> list[Any]:
    """The shards of the gradients of some steps of FSDP2, and memories."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 50))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    state = fsdp.compress(model, spec)
    found: list[Any] = []
    with using(*kinds):
        for step in range(STEPS):
            model.zero_grad()
            x = torch.randn(4, 40, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            model(x).square().sum().backward()
            found.append(bits({name: p.grad.to_local() for name, p in model.named_parameters()}))
        found.append(bits(state.state_dict()["memory"]))
    return found


def not_finite(kinds: tuple[str, ...]) -> bool:
    """Whether the mean is NaN everywhere if one rank has a NaN."""
    tensors = normal(SHAPES, dist.get_rank())
    if dist.get_rank() == 0:
        tensors["c"][3, 4] = torch.nan
    with using(*kinds):
        all_reduce(tensors, "topk(0.1) | fp16")
    return all(bool(x.isnan().all()) for x in tensors.values())


def bits(tensors: Any) -> dict[str, bytes]:
    return {name: x.float().numpy().tobytes() for name, x in sorted(tensors.items()) if x is not None}
