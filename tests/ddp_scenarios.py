"""What the ranks do in tests/test_ddp.py: functions that a fresh process can import."""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fake_device import FakeDevice
from perbit import Plan
from perbit.engines import ddp
from perbit.sim.data import Split, load
from perbit.torch.collective.devices import Copied

SMALL_BUCKETS = 0.05  # megabytes: several buckets, which DDP rebuilds after the first step


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 10))


class Training:
    """Digits, a share for each rank; coded by `spec`, or plainly."""

    def __init__(self, spec: str | Plan | None, **options: Any) -> None:
        self.model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
        self.state = None
        if spec is not None:
            self.state = ddp.State(spec, self.model, **options)
            self.model.register_comm_hook(self.state, ddp.hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.8)
        data = load("digits")
        rank, world = dist.get_rank(), dist.get_world_size()
        self.x, self.y = (part[rank::world] for part in tensors(data.train))
        self.test = tensors(data.test)

    def step(self, number: int) -> int:
        """One step; a checksum of all parameters."""
        chosen = torch.arange(number * 32, number * 32 + 32) % len(self.x)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.x[chosen]), self.y[chosen]).backward()
        self.optimizer.step()
        return checksum(self.model)

    def accuracy(self) -> float:
        x, y = self.test
        return float((self.model.module(x).argmax(1) == y).float().mean())

    def save(self) -> bytes:
        assert self.state is not None
        parts = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "perbit": self.state.state_dict()}  # fmt: skip
        file = io.BytesIO()
        torch.save(parts, file)
        return file.getvalue()

    def load(self, data: bytes) -> None:
        assert self.state is not None
        parts = torch.load(io.BytesIO(data), weights_only=True)
        self.model.module.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        self.state.load_state_dict(parts["perbit"])


def tensors(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(split.x).float() / float(split.x.max()), torch.tensor(split.y).long()


def checksum(model: nn.Module) -> int:
    crc = 0
    for parameter in model.parameters():
        crc = zlib.crc32(parameter.detach().numpy().tobytes(), crc)
    return crc


def train(spec: str | None, steps: int, **options: Any) -> dict[str, Any]:
    training = Training(spec, **options)
    checksums = [training.step(number) for number in range(steps)]
    result = {"checksums": checksums, "accuracy": training.accuracy()}
    if training.state:
        state = training.state
        result |= {"sent": state.sent_bytes, "dense": state.dense_bytes, "memory": sorted(state.memories.arrays)}
    return result


def resume(spec: str, before: int, after: int) -> tuple[list[int], list[int]]:
    """Checksums of an uninterrupted run, and of one that was saved and loaded into fresh objects."""
    whole = Training(spec)
    uninterrupted = [whole.step(number) for number in range(before + after)]
    first = Training(spec)
    interrupted = [first.step(number) for number in range(before)]
    second = Training(spec)
    second.load(first.save())
    return uninterrupted, interrupted + [second.step(number) for number in range(before, before + after)]


def load_from_other_rank(spec: str) -> str:
    training = Training(spec)
    training.step(0)
    assert training.state is not None
    saved = training.state.state_dict()
    saved["rank"] += 1
    return str(error_of(lambda: training.state.load_state_dict(saved)))


def load_without_recall(spec: str) -> tuple[list[str], list[int]]:
    """What a checkpoint recalls; checksums after one that recalls nothing."""
    training = Training(spec)
    training.step(0)
    assert training.state is not None
    saved = training.state.state_dict()
    recalled = sorted(saved.pop("recall"))
    training.state.load_state_dict(saved)
    return recalled, [training.step(number) for number in range(1, 3)]


def pickled(spec: str) -> tuple[list[int], list[int]]:
    """Checksums of a run, and of one whose state went through pickle half-way."""
    whole, second = Training(spec), Training(spec)
    first = [whole.step(number) for number in range(6)]
    half = [second.step(number) for number in range(3)]
    other = Training(spec)
    other.load(second.save())
    assert second.state is not None
    copy = pickle.loads(pickle.dumps(second.state))
    copy.name_parameters(other.model)
    rewrapped = DistributedDataParallel(other.model.module, bucket_cap_mb=SMALL_BUCKETS)
    rewrapped.register_comm_hook(copy, ddp.hook)
    other.model = rewrapped
    return first, half + [other.step(number) for number in range(3, 6)]


def on_fake_device(spec: str, steps: int, is_early: bool, staging: type[Copied] = Copied) -> dict[str, Any]:
    """Training whose buckets are treated as if they were on a device that does everything as late, or as early, as it may."""
    usual = ddp.staging_for
    ddp.staging_for = lambda device, codec=None: staging(FakeDevice(is_early))
    try:
        return train(spec, steps)
    finally:
        ddp.staging_for = usual


# --- gradients we choose ---------------------------------------------------------------------------------------------


class Chosen(nn.Module):
    """A model whose gradients are the values it is called with."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        products = [(getattr(self, name) * g).sum() for name, g in gradients.items()]
        return torch.stack(products).sum()


def normal(shapes: dict[str, tuple[int, ...]], seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


@contextmanager
def coded(
    shapes: dict[str, tuple[int, ...]], spec: str | Plan, dtype: torch.dtype = torch.float32, unused: bool = False, **options: Any
) -> Iterator[tuple[DistributedDataParallel, ddp.State]]:  # fmt: skip
    model = DistributedDataParallel(Chosen(shapes, dtype), bucket_cap_mb=SMALL_BUCKETS, find_unused_parameters=unused)
    state = ddp.State(spec, model, **options)
    model.register_comm_hook(state, ddp.hook)
    yield model, state


def gradients_of(model: DistributedDataParallel) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.module.named_parameters()}


SHAPES = {"w": (60, 50), "b": (50,), "v": (40, 30)}


def conservation(spec: str, steps: int) -> dict[str, float]:
    """How far (all means that came back) + (what the memories hold) is from (all means that should have come), by parameter."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with coded(SHAPES, spec) as (model, state):
        came = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        meant = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        for step in range(steps):
            model.zero_grad()
            model(normal(SHAPES, 100 * step + rank)).backward()
            for name in SHAPES:
                came[name] += gradients_of(model)[name]
                meant[name] += sum(normal(SHAPES, 100 * step + other)[name] for other in range(world)) / world
        far = {}
        for name, shape in SHAPES.items():
            n = came[name].numel()
            kept = torch.from_numpy(state.memories.arrays[name]).clone() if name in state.memories.arrays else torch.zeros(n)  # fmt: skip
            if world > state.gather_up_to:  # the memory of the own piece is in units of the mean already
                kept[n * rank // world : n * (rank + 1) // world] *= world
            dist.all_reduce(kept)
            far[name] = float((came[name] + kept.view(shape) / world - meant[name]).abs().max())
        return far


def accumulation() -> tuple[Any, Any]:
    """Three micro-batches, the first two without synchronization: coded exactly, and plainly."""
    results = []
    for spec in ("raw", None):
        model = DistributedDataParallel(Chosen(SHAPES), bucket_cap_mb=SMALL_BUCKETS)
        if spec:
            model.register_comm_hook(ddp.State(spec), ddp.hook)
        with model.no_sync():
            for batch in range(2):
                model(normal(SHAPES, 10 * batch + dist.get_rank())).backward()
        model(normal(SHAPES, 20 + dist.get_rank())).backward()
        results.append(gradients_of(model))
    return results[0], results[1]


def unused_parameters() -> dict[str, Any]:
    """`v` is used by everybody in the first step, by rank 0 in the second, by nobody in the third; its memory must wait."""
    rank = dist.get_rank()
    with coded(SHAPES, "topk(0.01)", unused=True) as (model, state):
        kept, gradients = [], []
        for step, users in enumerate(((0, 1), (0,), ())):
            model.zero_grad()
            given = normal(SHAPES, 10 * step + rank)
            if rank not in users:
                del given["v"]
            model(given).backward()
            kept.append(state.memories.arrays["v"].copy())
            gradients.append(gradients_of(model)["v"])
        return {"kept": kept, "gradients": gradients}


def empty_tensor(spec: str) -> dict[str, torch.Tensor | None]:
    shapes = {"w": (60, 50), "nothing": (0, 5)}
    with coded(shapes, Plan.of(spec, small_below=0)) as (model, _):
        model(normal(shapes, dist.get_rank())).backward()
        return gradients_of(model)


def dtype(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean that came back, and the mean that should have."""
    kind = getattr(torch, name)
    shapes = {"w": (30, 20)}
    with coded(shapes, "raw", kind) as (model, _):
        model(normal(shapes, dist.get_rank(), kind)).backward()
        meant = sum(normal(shapes, rank, kind)["w"].double() for rank in range(2)) / 2
        came = gradients_of(model)["w"]
        assert came is not None
        assert came.dtype == kind
        return came.double(), meant


def nonfinite(value: float) -> dict[str, Any]:
    """Rank 1 has a NaN or infinity in the second of three steps."""
    rank = dist.get_rank()
    with coded(SHAPES, "topk(0.05)") as (model, state):
        finite, kept = [], []
        for step in range(3):
            model.zero_grad()
            given = normal(SHAPES, 10 * step + rank)
            if step == 1 and rank == 1:
                given["w"][3, 4] = value
            model(given).backward()
            gradient = gradients_of(model)["w"]
            assert gradient is not None
            finite.append((bool(gradient.isfinite().all()), bool(gradient.isnan().all())))
            kept.append(state.memories.arrays["w"].copy())
        return {"finite": finite, "kept": kept}


def out_of_step() -> str:
    with coded(SHAPES, "topk(0.05)") as (model, state):
        state.step += dist.get_rank()
        return str(error_of(lambda: model(normal(SHAPES, 0)).backward()))


def metrics_of_steps(spec: str) -> list[dict[str, float]]:
    return metrics_of(Training(spec))


def metrics_of(training: Any) -> list[dict[str, float]]:
    """What the state of a training says after each of three steps."""
    found = []
    for number in range(3):
        training.step(number)
        found.append(training.state.metrics())
    return found


def sparse_embedding() -> str:
    model = DistributedDataParallel(nn.Embedding(50, 4, sparse=True))
    model.register_comm_hook(ddp.State("topk(0.1)"), ddp.hook)
    return str(error_of(lambda: model(torch.tensor([1, 2])).sum().backward()))


def overlap(path: str) -> bool:
    """Rank 1 starts its backward pass only when rank 0 has computed its last gradient: with a hook that waits, neither would finish."""
    store = dist.FileStore(path, 2)
    store.set_timeout(timedelta(seconds=60))
    layers = [nn.Linear(100, 100) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=SMALL_BUCKETS)
    model.register_comm_hook(ddp.State("topk(0.1)", model), ddp.hook)
    for step in range(2):
        loss = model(torch.ones(2, 100)).sum()
        if dist.get_rank() == 0:
            handle = layers[0].weight.register_hook(lambda gradient, step=step: store.set(f"computed {step}", "yes"))
        else:
            store.wait([f"computed {step}"])
        loss.backward()
        if dist.get_rank() == 0:
            handle.remove()
    return True


def hanging(path: str, steps_before: int, timeout: timedelta | None = None) -> str | None:
    """Rank 1 hangs after so many steps."""
    with coded(SHAPES, "topk(0.1)", timeout=timeout) as (model, _):
        for step in range(steps_before):
            model(normal(SHAPES, step)).backward()
        return error_while_rank_1_hangs(path, lambda: model(normal(SHAPES, steps_before)).backward())


def error_while_rank_1_hangs(path: str, step: Callable[[], Any]) -> str | None:
    """What rank 0 raises in a step that rank 1 begins only when rank 0 has given up, or has waited far too long."""
    store = dist.FileStore(path, 2)
    if dist.get_rank() == 0:
        error = error_of(step)
        store.set("rank 0 gave up", "yes")
        return error and str(error)
    try:
        store.wait(["rank 0 gave up"], timedelta(seconds=45))
    except RuntimeError:
        step()
    return None


def gathered_lengths(lengths: list[list[int]]) -> bool:
    """Messages of all these lengths come through whole, whatever came before; `lengths[call][rank]`."""
    from perbit.torch.collective.bytegroup import ByteGroup, own_group

    group = ByteGroup(own_group(None))
    for call in lengths:
        messages = [bytes([rank + 1]) * length for rank, length in enumerate(call)]
        assert [bytes(m) for m in group.gather(messages[group.rank], 0)] == messages
        sent = [bytes([group.rank]) * (length + other) for other, length in enumerate(call)]
        came = [bytes(m) for m in group.exchange(sent)]
        assert came == [b"" if other == group.rank else bytes([other]) * (call[group.rank] + group.rank) for other in range(group.world)]  # fmt: skip
    return True


def error_of(action: Any) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None
