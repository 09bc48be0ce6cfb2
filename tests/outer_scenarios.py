"""What the ranks do in tests/test_outer.py: functions that a fresh process can import."""

from __future__ import annotations

import io
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import perbit.outer
from ddp_scenarios import error_of, network, tensors
from perbit.outer import LocalSteps
from perbit.sim.data import load


class Training:
    """Digits, a share for each rank, with local steps of SGD."""

    def __init__(self, outer: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
        self.model = network().to(dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.8)
        self.outer = made(self.model, outer)
        data = load("digits")
        rank, world = dist.get_rank(), dist.get_world_size()
        self.x, self.y = (part[rank::world] for part in tensors(data.train))
        self.x, self.test = self.x.to(dtype), tensors(data.test)

    def step(self, number: int) -> int:
        chosen = torch.arange(number * 32, number * 32 + 32) % len(self.x)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.x[chosen]), self.y[chosen]).backward()
        self.optimizer.step()
        self.outer.step()
        return digest(self.model)

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (self.model, self.optimizer, self.outer)], file)
        return file.getvalue()

    def load(self, data: bytes) -> None:
        saved = torch.load(io.BytesIO(data), weights_only=True)
        for part, state in zip((self.model, self.optimizer, self.outer), saved, strict=True):
            part.load_state_dict(state)


def made(model: nn.Module, options: dict[str, Any]) -> LocalSteps:
    if "name" in options:
        return perbit.outer.preset(
            options["name"], model, **{key: value for key, value in options.items() if key != "name"}
        )
    return LocalSteps(model, **options)


def digest(model: nn.Module) -> int:
    crc = 0
    for x in model.state_dict().values():
        crc = zlib.crc32(x.float().numpy().tobytes(), crc)
    return crc


def train(options: dict[str, Any], steps: int, dtype: str = "float32") -> dict[str, Any]:
    training = Training(options, getattr(torch, dtype))
    digests = [training.step(number) for number in range(steps)]
    x, y = training.test
    accuracy = float((training.model(x.to(getattr(torch, dtype))).argmax(1) == y).float().mean())
    return {
        "digests": digests,
        "accuracy": accuracy,
        "metrics": training.outer.metrics(),
        "shared": training.outer.model.digest(),
    }


def resume(options: dict[str, Any], before: int, after: int) -> tuple[list[int], list[int]]:
    whole, first = Training(options), Training(options)
    uninterrupted = [whole.step(number) for number in range(before + after)]
    interrupted = [first.step(number) for number in range(before)]
    second = Training(options)
    second.load(first.save())
    return uninterrupted, interrupted + [second.step(number) for number in range(before, before + after)]


class Moved(nn.Module):
    """A model that is moved by hand; ranks begin with different values."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((40, 30), float(dist.get_rank()), dtype=dtype))
        self.frozen = nn.Parameter(torch.full((3,), float(dist.get_rank())), requires_grad=False)
        self.register_buffer("mean", torch.full((5,), 10.0 * dist.get_rank()))
        self.register_buffer("count", torch.tensor(dist.get_rank()))


def by_hand(rounds: int) -> dict[str, Any]:
    """Rank r moves by -(r + 1) in every round; with DiLoCo's outer optimizer and exact frames."""
    model = Moved()
    outer = LocalSteps(model, "raw", every=1)
    found = []
    for _ in range(rounds):
        with torch.no_grad():
            model.w -= dist.get_rank() + 1
            model.mean += dist.get_rank()
        assert outer.step()
        found.append(float(model.w[3, 4]))
        assert bool((model.w == model.w[0, 0]).all())
    return {"w": found, "frozen": float(model.frozen[0]), "mean": float(model.mean[0]), "count": int(model.count)}


class Pair(nn.Module):
    """Two tensors of equal size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(40, 30)) for _ in range(2))


def streaming() -> tuple[list[float], list[float], list[float]]:
    """Rank r moves by -(r + 1) in every step; the outer optimizer takes the mean."""
    model = Pair()
    outer = LocalSteps(model, "raw", every=4, outer=mean_of_models, fragments=2, delay=1, keep=0.5)
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(5):
        with torch.no_grad():
            for x in (model.a, model.b):
                x -= dist.get_rank() + 1
        outer.step()
        for values, x in zip(found, (model.a, model.b), strict=True):
            values.append(float(x[3, 4]))
    return *found, [float(x.detach()[0, 0]) for x in outer.shared.values()]


def apart() -> dict[str, list[Any]]:
    """Rank r moves half of the values by -4 (r + 1), the other half by -(r + 1); half can be sent. In the third round only the latter move."""
    model = Moved()
    outer = LocalSteps(model, "topk(0.5)", every=1, outer=mean_of_models, error_feedback=0.5, apart=True)
    own, shared = [], []
    for number in range(3):
        with torch.no_grad():
            model.w[:20] -= 4.0 * (dist.get_rank() + 1) * (number < 2)
            model.w[20:] -= dist.get_rank() + 1
        outer.step()
        own.append((float(model.w[0, 0]), float(model.w[20, 0])))
        with outer.shared_values():
            shared.append((float(model.w[0, 0]), float(model.w[20, 0])))
        assert own[-1] == (float(model.w[0, 0]), float(model.w[20, 0]))
    return {"own": own, "shared": shared}


def overlapped() -> tuple[int, int]:
    """Rank 0 trains on after a fragment has left, and only then does rank 1 take part in the exchange: it would hang if rank 0 waited."""
    model = Pair()
    outer = LocalSteps(model, "uniform(4)", every=6, outer=mean_of_models, fragments=2, delay=2)
    for _ in range(4 if dist.get_rank() == 0 else 2):  # the first fragment leaves after step 3
        outer.step()
    dist.barrier()  # the training loop's own collectives do not meet those of the exchange
    for _ in range(2 if dist.get_rank() == 0 else 4):
        outer.step()
    outer.synchronize()
    assert outer.metrics()["stalled_seconds"] > 0
    return outer.model.digest(), digest(model)


def diverged(apart: bool) -> dict[str, Any]:
    """Rank 1 has NaN in the second of three rounds."""
    model = Moved()
    outer = LocalSteps(model, "topk(0.1)", every=1, outer=mean_of_models, apart=apart)
    found = []
    for number in range(3):
        with torch.no_grad():
            model.w += torch.nan if number == 1 and dist.get_rank() == 1 else 1.0
        outer.step()
        with outer.shared_values():
            found.append(float(model.w.detach().double().sum()))
        assert bool(model.w.isfinite().all())
    return {"sums": found, "skipped": outer.metrics()["skipped"]}


def mean_of_models(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def refused() -> list[str]:
    model = network()
    one = LocalSteps(model, "topk(0.1)", every=3)
    saved = one.state_dict()
    actions = [
        lambda: LocalSteps(model, "topk(0.2)", every=3).load_state_dict(saved),
        lambda: LocalSteps(model, "topk(0.1)", every=4).load_state_dict(saved),
        lambda: LocalSteps(nn.Linear(40, 30), "topk(0.1)", every=3).load_state_dict(saved),
        lambda: one.load_state_dict({**saved, "memory": {**saved["memory"], "world": 9}}),
        lambda: LocalSteps(model, "topk(0.1)", every=0),
        lambda: LocalSteps(model.requires_grad_(False), "topk(0.1)", every=1),
        lambda: perbit.outer.preset("dilocco", model),
        lambda: perbit.outer.preset("diloco", model, evry=3),
        lambda: LocalSteps(network(), "topk(0.1)", every=10, fragments=2, delay=5),
        lambda: LocalSteps(network(), "topk(0.1)", every=10, keep=0.5),
        lambda: LocalSteps(network(), "topk(0.1)", every=10, fragments=9),
        lambda: LocalSteps(network(), "topk(0.1)", every=10, error_feedback=False, apart=True),
        lambda: LocalSteps(network(), "topk(0.1)", every=10, delay=2, apart=True),
    ]
    return [str(error_of(action)) for action in actions]
