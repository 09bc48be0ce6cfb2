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

from ddp_scenarios import error_of, error_while_rank_1_hangs, metrics_of, network, tensors
from perbit.engines import fsdp
from perbit.plan import PlanLike
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


def metrics_of_steps(spec: str) -> list[dict[str, float]]:
    return metrics_of(Training(spec))


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
    """A model whose gradients are the values it is called with."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([(getattr(self, name) * g).sum() for name, g in gradients.items()]).sum()


SHAPES = {
    "matrix": (101, 20),
    "bias": (33,),
    "other": (60, 40),
}  # 101 and 33 rows are no multiple of the number of ranks


def chosen(plan: PlanLike, **options: Any) -> tuple[nn.Module, fsdp.State]:
    model = Product(**SHAPES)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, fsdp.compress(model, plan, **options)


def normal(step: int, rank: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def mean(step: int) -> dict[str, torch.Tensor]:
    every = [normal(step, rank) for rank in range(dist.get_world_size())]
    return {name: torch.stack([each[name] for each in every]).mean(0) for name in SHAPES}


def whole_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: gradient.full_tensor() for name, gradient in found.items() if isinstance(gradient, DTensor)}


def in_model(memory: Any, name: str) -> torch.Tensor:
    """A memory, which holds shard after shard, in the order of the parameter; FSDP fills up the last shard."""
    shape = SHAPES[name]
    return torch.from_numpy(memory).clone().view(-1, *shape[1:])[: shape[0]]


def conservation(spec: str) -> dict[str, float]:
    """How far (all means that came back) + (what the memories hold) is from (all means that should have come), by parameter."""
    model, state = chosen(spec)
    came = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    meant = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(4):
        model.zero_grad()
        model(normal(step, dist.get_rank())).backward()
        for name in SHAPES:
            came[name] += whole_gradients(model)[name]
            meant[name] += mean(step)[name]
    assert sorted(state.memories.arrays) == ["matrix", "other"]  # the bias goes raw
    for name, memory in state.memories.arrays.items():
        kept = in_model(memory, name)
        assert kept.count_nonzero() > 0
        dist.all_reduce(kept)
        came[name] += kept / dist.get_world_size()
    return {name: float((came[name] - meant[name]).abs().max()) for name in SHAPES}


def first_step(plan: PlanLike, used: list[str], zeros_for_others: bool = False) -> dict[str, float]:
    """How far the gradient of each parameter that got one is from the mean over all ranks."""
    model, _ = chosen(plan)
    model.set_reduce_scatter_unused_params(zeros_for_others)
    given = normal(0, dist.get_rank())
    model({name: given[name] for name in used}).backward()
    return {name: float((came - mean(0)[name]).abs().max()) for name, came in whole_gradients(model).items()}


def frozen() -> list[str]:
    """Which parameters get a gradient and a memory after another one was frozen."""
    model, state = chosen("topk(0.01)")
    model.other.requires_grad_(False)
    model(normal(0, dist.get_rank())).backward()
    return sorted({*whole_gradients(model), *state.memories.arrays})


def nonfinite() -> list[bool]:
    """Whether each of three steps gave a finite gradient; rank 1 has a NaN in the second."""
    model, _ = chosen("topk(0.1)")
    finite = []
    for step in range(3):
        model.zero_grad()
        given = normal(step, dist.get_rank())
        if step == 1 and dist.get_rank() == 1:
            given["matrix"][7, 3] = float("nan")
        model(given).backward()
        whole = torch.cat([gradient.flatten() for gradient in whole_gradients(model).values()])
        assert bool(whole.isfinite().all()) or bool(whole.isnan().all())
        finite.append(bool(whole.isfinite().all()))
    return finite


def hanging(path: str) -> str | None:
    """Rank 1 hangs between its forward and its backward pass, where all that FSDP waits for are coded gradients."""
    model, _ = chosen("topk(0.1)")
    model(normal(0, 0)).backward()
    loss = model(normal(1, 0))
    return error_while_rank_1_hangs(path, loss.backward)


def not_sharded() -> str:
    return str(error_of(lambda: fsdp.compress(network(), "topk(0.1)")))
