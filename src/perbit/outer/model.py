"""The shared model beside a worker's own: how far the worker has come from it, and how an outer optimizer moves it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.torch.errorfeedback import trained_parameters
from perbit.torch.tensors import cast, strided

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Named = dict[str, torch.Tensor]


def nesterov(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """DiLoCo's outer optimizer: SGD with rate 0.7 and Nesterov momentum 0.9."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


class SharedModel:
    """`local` are the worker's own parameters, `shared` what all workers agree on, `buffers` those of floats."""

    def __init__(self, model: torch.nn.Module, outer: MakeOptimizer | None) -> None:
        self.local = {name: strided(x, name) for name, x in trained_parameters(model).items()}
        if not self.local:
            raise ValueError("the model has no parameter that needs a gradient")
        self.buffers = {name: x for name, x in model.named_buffers() if x.is_floating_point() and x.numel()}
        self.shared = {name: torch.nn.Parameter(_wide(x)) for name, x in self.local.items()}
        self.optimizer = (outer or nesterov)(list(self.shared.values()))

    @torch.no_grad()
    def begin(self) -> None:
        """Share what the worker holds now."""
        for name, shared in self.shared.items():
            shared.copy_(self.local[name])

    @torch.no_grad()
    def change(self, names: Iterable[str]) -> Named:
        """The pseudo-gradient: from the worker's own model to the shared one."""
        return {name: self.shared[name] - self.local[name] for name in names}

    @torch.no_grad()
    def move(self, mean: Named, keep: float = 0.0) -> bool:
        """Take an outer step with these pseudo-gradients; the worker's own model takes all of it but the share `keep` of itself.

        False, and the worker is back at the shared model, if any of them is not finite.
        """
        is_finite = all(bool(x.isfinite().all()) for x in mean.values())
        if is_finite:
            for name, x in mean.items():
                self.shared[name].grad = x
            self.optimizer.step()  # those without a gradient stay
            self.optimizer.zero_grad()
        for name in mean:
            taken = self.shared[name].detach()
            if keep and is_finite:
                taken = taken.lerp(self.local[name].to(taken.dtype), keep)
            self.local[name].copy_(cast(taken, self.local[name].dtype))
        return is_finite

    @torch.no_grad()
    def go_apart(self, unsent: Mapping[str, F32], share: float) -> None:
        """Put this share of what could not be sent back into the worker's own model: its next pseudo-gradient has it again.

        What is beyond float32, as where a model diverged, is not put back.
        """
        for name, values in unsent.items():
            own = self.local[name]
            apart = self.shared[name].detach() - share * torch.from_numpy(values).view(own.shape).to(own.device)
            if bool(apart.isfinite().all()):
                own.copy_(cast(apart, own.dtype))

    @torch.no_grad()
    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within the block the worker's own model holds the shared values."""
        own = {name: x.clone() for name, x in self.local.items()}
        self.restart()
        try:
            yield
        finally:
            for name, x in own.items():
                self.local[name].copy_(x)

    @torch.no_grad()
    def restart(self) -> None:
        """Go back to the shared model."""
        for name, shared in self.shared.items():
            self.local[name].copy_(cast(shared.detach(), self.local[name].dtype))

    def digest(self) -> int:
        """Of the shared model and of what the outer optimizer keeps: equal bits have equal digests."""
        crc = 0
        for x in (*self.shared.values(), *_tensors(self.optimizer.state_dict()["state"])):
            crc = K.crc32c(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, crc)
        return crc

    def state_dict(self) -> dict[str, Any]:
        shared = {name: x.detach().clone() for name, x in self.shared.items()}
        return {"shared": shared, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if {name: x.shape for name, x in state["shared"].items()} != {name: x.shape for name, x in self.shared.items()}:
            raise ValueError("the checkpoint is of another model")
        with torch.no_grad():
            for name, x in self.shared.items():
                x.copy_(state["shared"][name])
        self.optimizer.load_state_dict(state["optimizer"])


def check_apart(apart: bool, error_feedback: bool | float) -> None:
    if apart and not error_feedback:
        raise ValueError(
            "apart=True is a place for what error feedback keeps: give error_feedback too, True or a share of it"
        )


def fragments_of(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Neighbouring tensors in `count` parts of about as many values each.

    >>> fragments_of({"a": 5, "b": 1, "c": 4, "d": 2}, 2)
    [['a', 'b'], ['c', 'd']]
    """
    if not 1 <= count <= len(sizes):
        raise ValueError(f"fragments must be 1 to {len(sizes)}, the number of the model's tensors, got {count}")
    names, ends = list(sizes), np.cumsum(list(sizes.values()))
    parts: list[list[str]] = []
    for part in range(count):
        begin, left = sum(map(len, parts)), count - part - 1
        goal = ends[-1] * (part + 1) / count
        end = begin + 1 + int(np.argmin(np.abs(ends[begin : len(names) - left] - goal)))
        parts.append(names[begin : end if left else None])
    return parts


def _wide(x: torch.Tensor) -> torch.Tensor:
    """A copy in which small outer steps are not lost: float32, or float64 for float64."""
    return x.detach().to(torch.promote_types(x.dtype, torch.float32), copy=True)


def _tensors(state: Mapping[Any, Mapping[str, Any]]) -> Iterable[torch.Tensor]:
    return (x for of_one in state.values() for x in of_one.values() if isinstance(x, torch.Tensor))
