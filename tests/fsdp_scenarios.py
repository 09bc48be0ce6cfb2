"""What the ranks do in tests/test_fsdp.py: functions that a fresh process can import."""

from __future__ import annotations

import io
import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
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

    def __init__(self, spec: str | None, **options: Any) -> None:
        self.model = sharded(network())
        coded = spec is not None or options
        self.state = fsdp.compress(self.model, spec, **options) if coded else None
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


def train(spec: str | None, steps: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
    training = Training(spec, **(options or {}))
    result: dict[str, Any] = {"losses": [training.step(number) for number in range(steps)]}
    result["checksum"] = training.checksum()  # before another forward pass gathers the parameters of the root
    x, y = training.test
    result["accuracy"] = float((training.model(x).argmax(1) == y).float().mean())
    if training.state:
        result |= {"ratio": training.state.ratio, "modules": training.state.modules}
        result |= {"parameter_ratio": training.state.parameter_ratio, "metrics": training.state.metrics()}
        result["copies"] = copies(training.state)
    return result


def copies(state: fsdp.State) -> int:
    """A checksum of what this rank holds of all shards."""
    crc = 0
    for followed in state.followed.values():
        assert followed.copy is not None
        crc = zlib.crc32(followed.copy.tobytes(), crc)
    return crc


def metrics_of_steps(spec: str) -> list[dict[str, float]]:
    return metrics_of(Training(spec))


def resume(spec: str, **options: Any) -> tuple[list[int], list[int]]:
    whole, first, second = (Training(spec, **options) for _ in range(3))
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
    saved = io.BytesIO()
    torch.save(first.state.state_dict(), saved)
    saved.seek(0)
    second.state.load_state_dict(torch.load(saved, weights_only=True))
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


def resume_both_ways() -> tuple[list[int], list[int]]:
    return resume("topk(0.05) | qsgd(15) | rans", parameters="qsgd(7) | rans")


def parameters_followed() -> dict[str, float]:
    """How far what the ranks hold is from the parameters, when these no longer change; one that is coded exactly, at once."""
    model = Product(**SHAPES)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    state = fsdp.compress(model, None, parameters="uniform(3) | rans")
    seen: list[dict[str, torch.Tensor]] = []
    model.register_forward_hook(lambda *_: seen.append({n: p.detach().clone() for n, p in model.named_parameters()}))
    generator = torch.Generator().manual_seed(1)
    far: dict[str, float] = {}
    for step in range(6):
        with torch.no_grad():
            for parameter in model.parameters():
                local = parameter.to_local()
                local.add_((1.0, 0.1, 0.0)[min(step, 2)] * torch.randn(local.shape, generator=generator) + 1e-6)
        model(normal(0, 0))
        model.reshard()
        whole = {n: p.full_tensor() for n, p in model.named_parameters()}
        far = {n: float((seen[-1][n] - whole[n]).abs().max()) for n in SHAPES}
        if step == 0:
            assert max(far.values()) == 0  # the first time everything travels as it is
        if step == 1:
            assert far["matrix"] > 1e-2
            assert far["bias"] == 0
    before = state.parameter_traffic.sent_bytes
    model(normal(0, 0))
    far["unchanged"] = state.parameter_traffic.sent_bytes - before
    model.reshard()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(std=3.0, generator=generator)
    model(normal(0, 0))
    model.reshard()
    loaded = model.matrix.full_tensor()
    far["loaded"] = float((seen[-1]["matrix"] - loaded).abs().max())
    return far


def divided(factor: float, spec: str = "raw", accumulate: int = 1) -> float:
    """How far gradients are from the sum over ranks and passes, divided by a factor of the user's."""
    model, _ = chosen(spec)
    model.set_gradient_divide_factor(factor)
    for _ in range(accumulate):
        model(normal(0, dist.get_rank())).backward()
    world, came = dist.get_world_size(), whole_gradients(model)
    return max(float((came[n] - accumulate * world / factor * mean(0)[n]).abs().max()) for n in SHAPES)


def reduced_in(dtype: torch.dtype) -> float:
    """Gradients that are cast, or divided after the reduction, are read at once."""
    model = Product(**SHAPES)
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), mp_policy=policy)
    fsdp.compress(model, "raw")
    model(normal(0, dist.get_rank())).backward()
    return max(float((came - mean(0)[name]).abs().max()) for name, came in whole_gradients(model).items())


def replicated(spec: str) -> dict[str, Any]:
    """Two replicas of two shards: the mean over all four ranks, of which only the hop between replicas is coded."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(dist.get_rank() // 2)  # replicas begin with different parameters
    model = Product(**SHAPES)
    with torch.no_grad():
        model.matrix.normal_()
    fully_shard(model, mesh=mesh["shard"])
    state = fsdp.compress(model, spec, replicas=mesh["replicate"], parameters="uniform(4) | rans")
    came = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    meant = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(3):
        model.zero_grad()
        model(normal(step, dist.get_rank())).backward()
        for name, gradient in whole_gradients(model).items():
            came[name] += gradient
            meant[name] += mean(step)[name]
    for name, memory in state.memories.arrays.items():  # of the own shard; mean over replicas
        kept = torch.from_numpy(memory).clone()
        dist.all_reduce(kept, group=mesh["replicate"].get_group())
        parts = [torch.empty_like(kept) for _ in range(2)]
        dist.all_gather(parts, kept, group=mesh["shard"].get_group())
        shape = SHAPES[name]
        came[name] += torch.cat([part.view(-1, *shape[1:]) for part in parts])[: shape[0]] / 2
    model.reshard()
    crc = 0
    for parameter in model.parameters():
        crc = zlib.crc32(parameter.full_tensor().detach().numpy().tobytes(), crc)
    far = {name: float((came[name] - meant[name]).abs().max()) for name in SHAPES}
    return {"far": far, "checksum": crc, "ratio": state.ratio}


class Pair(nn.Module):
    """Two modules, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Product(matrix=SHAPES["matrix"]), Product(bias=(33,), other=(60, 40))

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        matrix, *others = given
        return self.first({matrix: given[matrix]}) + self.second({name: given[name] for name in others})


def grouped() -> dict[str, float]:
    """Two modules that FSDP communicates together, as norm and head of a transformer."""
    model, mesh = Pair(), init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard([model.first, model.second], mesh=mesh)
    fully_shard(model, mesh=mesh)
    fsdp.compress(model, "topk(0.01)", parameters="uniform(4)")
    model(normal(0, dist.get_rank())).backward()
    came = {name.split(".")[1]: gradient for name, gradient in whole_gradients(model).items()}
    return {name: float((gradient - mean(0)[name]).abs().max()) for name, gradient in came.items()}


def hanging(path: str) -> str | None:
    """Rank 1 hangs between its forward and its backward pass, where all that FSDP waits for are coded gradients."""
    model, _ = chosen("topk(0.1)")
    model(normal(0, 0)).backward()
    loss = model(normal(1, 0))
    return error_while_rank_1_hangs(path, loss.backward)


def not_sharded() -> str:
    return str(error_of(lambda: fsdp.compress(network(), "topk(0.1)")))


def nothing_to_code() -> str:
    model = sharded(network())
    return str(error_of(lambda: fsdp.compress(model, None)))


def overlap(path: str) -> bool:
    """Rank 1 starts its backward pass only when rank 0 has computed its first layer's gradient: with a reduce-scatter that waits, it never would.

    Parameters stay gathered, so that nothing but gradients is waited for. In a step before, the ranks make their group together.
    """
    store = dist.FileStore(path, 2)
    store.set_timeout(timedelta(seconds=60))
    model, mesh = nn.Sequential(*[nn.Linear(100, 100) for _ in range(3)]), init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    fsdp.compress(model, "topk(0.1)")
    for step in range(3):
        model.zero_grad()
        x = torch.ones(2, 100, requires_grad=True)
        if dist.get_rank() == 0:
            x.register_hook(lambda gradient, step=step: store.set(f"computed {step}", "yes"))
        loss = model(x).sum()
        if dist.get_rank() == 1 and step > 0:
            store.wait([f"computed {step}"])
        loss.backward()
    return all(gradient.isfinite().all() for gradient in whole_gradients(model).values())
