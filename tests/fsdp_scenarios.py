"""What the ranks do in tests/test_fsdp.py: functions that a fresh process can import."""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ddp_scenarios import error_of, network, tensors
from perbit.engines import fsdp
from perbit.sim.data import load


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear) and layer.out_features > 10:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class Training:
    """Digits, a share for each rank."""

    def __init__(self, spec: str | None) -> None:
        self.model = sharded(network())
        self.state = None if spec is None else fsdp.compress(self.model, spec)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.8)
        data = load("digits")
        self.x, self.y = (part[dist.get_rank() :: dist.get_world_size()] for part in tensors(data.train))
        self.test = tensors(data.test)

    def step(self, number: int) -> float:
        chosen = torch.arange(number * 32, number * 32 + 32) % len(self.x)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.x[chosen]), self.y[chosen])
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def checksum(self) -> int:
        """Of the whole parameters, gathered from all ranks."""
        crc = 0
        for parameter in self.model.parameters():
            assert isinstance(parameter, DTensor)
            crc = zlib.crc32(parameter.full_tensor().detach().numpy().tobytes(), crc)
        return crc


def train(spec: str | None, steps: int) -> dict[str, Any]:
    training = Training(spec)
    result: dict[str, Any] = {"losses": [training.step(number) for number in range(steps)]}
    result["checksum"] = training.checksum()  # before another forward pass gathers the parameters of the root
    x, y = training.test
    result["accuracy"] = float((training.model(x).argmax(1) == y).float().mean())
    if training.state:
        result |= {"ratio": training.state.ratio, "modules": training.state.modules}
    return result


def resume(spec: str) -> tuple[list[int], list[int]]:
    whole, first, second = Training(spec), Training(spec), Training(spec)
    uninterrupted, interrupted = [], []
    for number in range(6):
        whole.step(number)
        uninterrupted.append(whole.checksum())
    for number in range(3):
        first.step(number)
        interrupted.append(first.checksum())
    assert first.state is not None
    assert second.state is not None
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.state.load_state_dict(first.state.state_dict())
    for number in range(3, 6):
        second.step(number)
        interrupted.append(second.checksum())
    return uninterrupted, interrupted


class Product(nn.Module):
    """A model whose gradient is the value it is called with."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(n))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.w * gradient).sum()


def chosen(n: int, spec: str) -> tuple[nn.Module, fsdp.State]:
    model = Product(n)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, fsdp.compress(model, spec)


def normal(n: int, step: int, rank: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(100 * step + rank))


def whole_gradient(model: nn.Module) -> torch.Tensor:
    gradient = next(model.parameters()).grad
    assert isinstance(gradient, DTensor)
    return gradient.full_tensor()


def conservation(spec: str, n: int = 1000) -> float:
    """How far (all means that came back) + (what the memories hold) is from (all means that should have come)."""
    world = dist.get_world_size()
    model, state = chosen(n, spec)
    came, meant = torch.zeros(n), torch.zeros(n)
    for step in range(4):
        model.zero_grad()
        model(normal(n, step, dist.get_rank())).backward()
        came += whole_gradient(model)
        meant += sum(normal(n, step, rank) for rank in range(world)) / world
    (memory,) = state.memories.arrays.values()
    kept = torch.from_numpy(memory).clone()
    assert kept.count_nonzero() > 0
    dist.all_reduce(kept)
    return float((came + kept / world - meant).abs().max())


def nonfinite() -> list[bool]:
    """Whether each of three steps gave a finite gradient; rank 1 has a NaN in the second."""
    model, _ = chosen(100, "topk(0.1)")
    finite = []
    for step in range(3):
        model.zero_grad()
        gradient = normal(100, step, dist.get_rank())
        if step == 1 and dist.get_rank() == 1:
            gradient[7] = float("nan")
        model(gradient).backward()
        whole = whole_gradient(model)
        assert bool(whole.isfinite().all()) or bool(whole.isnan().all())
        finite.append(bool(whole.isfinite().all()))
    return finite


def not_sharded() -> str:
    return str(error_of(lambda: fsdp.compress(network(), "topk(0.1)")))
