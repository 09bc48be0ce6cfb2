"""What the ranks do in tests/test_all_reduce.py: functions that a fresh process can import."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

import perbit.torch
from ddp_scenarios import SHAPES, checksum, error_of, network, normal, tensors
from perbit.sim.data import load
from perbit.torch import Memory, all_reduce
from perbit.torch.collective import bytegroup


def exact(dtype: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The mean that came, and the one that should have."""
    kind = getattr(torch, dtype)
    came = normal(SHAPES, dist.get_rank(), kind)
    all_reduce(came, "raw")
    every = [normal(SHAPES, rank, kind) for rank in range(dist.get_world_size())]
    return {name: (x, torch.stack([one[name].double() for one in every]).mean(0)) for name, x in came.items()}


def conservation(spec: str, decay: float | bool = True) -> dict[str, Any]:
    """How far (all means that came) + (what the memories hold) is from (all means that should have come)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    memory = Memory(error_feedback=decay)
    far = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    came: dict[str, torch.Tensor] = {}
    for step in range(4):
        came = normal(SHAPES, 100 * step + rank)
        metrics = all_reduce(came, spec, memory=memory)
        for name in SHAPES:
            far[name] += came[name] - sum(normal(SHAPES, 100 * step + other)[name] for other in range(world)) / world
    for name, array in memory.memories.arrays.items():
        kept = torch.from_numpy(array.copy())
        if world > memory.gather_up_to:  # the memory of the own piece is in units of the mean already
            kept[kept.numel() * rank // world : kept.numel() * (rank + 1) // world] *= world
        dist.all_reduce(kept)
        far[name] += kept.view(SHAPES[name]) / world
    return {"far": max(float(x.abs().max()) for x in far.values()), "came": came, "metrics": metrics, "all": memory.metrics()}  # fmt: skip


class LocalSteps:
    """Digits by gradients that are averaged by hand."""

    def __init__(self, spec: str) -> None:
        self.model, self.spec, self.memory = network(), spec, Memory(seed=1)
        data = load("digits")
        self.x, self.y = (part[dist.get_rank() :: dist.get_world_size()] for part in tensors(data.train))

    def step(self, number: int) -> int:
        chosen = torch.arange(number * 32, number * 32 + 32) % len(self.x)
        self.model.zero_grad()
        nn.functional.cross_entropy(self.model(self.x[chosen]), self.y[chosen]).backward()
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        all_reduce(gradients, self.spec, memory=self.memory)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.2 * parameter.grad
        return checksum(self.model)


def resume(spec: str) -> tuple[list[int], list[int]]:
    whole, first, second = LocalSteps(spec), LocalSteps(spec), LocalSteps(spec)
    uninterrupted = [whole.step(number) for number in range(8)]
    interrupted = [first.step(number) for number in range(4)]
    file = io.BytesIO()
    torch.save({"model": first.model.state_dict(), "memory": first.memory.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second.model.load_state_dict(saved["model"])
    second.memory.load_state_dict(saved["memory"])
    return uninterrupted, interrupted + [second.step(number) for number in range(4, 8)]


def wrong_rank() -> str:
    memory = Memory()
    return str(error_of(lambda: memory.load_state_dict({**memory.state_dict(), "world": 7})))


def nonfinite() -> dict[str, Any]:
    memory = Memory()
    given = normal(SHAPES, dist.get_rank())
    if dist.get_rank() == 1:
        given["w"][2, 3] = torch.inf
    all_reduce(given, "topk(0.1)", memory=memory)
    after = normal(SHAPES, 9)
    all_reduce(after, "topk(0.1)", memory=memory)
    return {"nan": all(bool(x.isnan().all()) for x in given.values()), "finite": bool(after["w"].isfinite().all())}


def of_a_part() -> list[float]:
    """Ranks 0 and 1 average, the others do something else."""
    group = dist.new_group([0, 1])
    x = torch.full((40, 30), float(dist.get_rank()))
    if dist.get_rank() < 2:
        all_reduce({"x": x}, "raw", group)
        memory = Memory(group)
        all_reduce({"x": x}, "raw", memory=memory)
        all_reduce({"x": x}, "raw", group, memory)
        assert "belongs to another group" in str(
            error_of(lambda: all_reduce({"x": x}, "raw", dist.group.WORLD, memory))
        )
    return [float(x.min()), float(x.max())]


def other_layouts() -> bool:
    """Not contiguous, one value, none, and a parameter."""
    rank = dist.get_rank()
    given = {
        "t": torch.full((30, 40), float(rank)).t(),
        "one": torch.tensor(float(rank)),
        "none": torch.zeros(0, 3),
        "p": nn.Parameter(torch.full((4, 5), float(rank), dtype=torch.bfloat16)),
    }
    all_reduce(given, "raw")
    mean = (dist.get_world_size() - 1) / 2
    return all(bool((x == mean).all()) for x in given.values()) and given["none"].shape == (0, 3)


def refused() -> list[str]:
    whole = torch.ones(4, 4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    spread = distribute_tensor(whole, mesh)
    actions = [
        lambda: all_reduce({"x": torch.ones(3, dtype=torch.int64)}, "raw"),
        lambda: all_reduce({}, "raw"),
        lambda: all_reduce({"x": spread}, "raw"),
        lambda: perbit.torch.encode(spread, "raw"),
        lambda: perbit.torch.load_into({"x": spread}, perbit.torch.dumps({"x": whole}, "raw")),
    ]
    return [str(error_of(action)) for action in actions]


def other_shapes_here() -> str:
    """Every rank has tensors that the others do not expect."""
    mine = {f"of rank {dist.get_rank()}": torch.ones(40, 30)}
    return str(error_of(lambda: all_reduce(mine, "topk(0.1)")))


def randomness() -> bool:
    """Without a memory every call draws anew, so that noise averages out."""
    x = normal({"w": (40, 30)}, 0)["w"]
    total = torch.zeros(40, 30)
    for _ in range(200):
        mine = {"w": x.clone()}
        all_reduce(mine, "qsgd(1) | rans")
        total += mine["w"] / 200
    return bool((total - x).norm() < 0.5 * (mine["w"] - x).norm())


def without_cpu() -> tuple[bool, float]:
    """A group whose backend knows nothing of the CPU (as NCCL) gets a gloo group beside it, once."""
    group = dist.new_group(list(range(dist.get_world_size())))
    found = bytegroup.has_cpu
    bytegroup.has_cpu = lambda asked: asked is not group and found(asked)
    try:
        beside = bytegroup.for_bytes(group)
        x = {"x": torch.full((40, 30), float(dist.get_rank()))}
        all_reduce(x, "raw", group)
        return beside is not group and bytegroup.for_bytes(group) is beside, float(np.mean(x["x"].numpy()))
    finally:
        bytegroup.has_cpu = found
