"""Local steps with an outer optimizer: every worker trains by itself, and now and then all of them move one shared model.

A round of H local steps takes a worker from the shared model θ to its own model w. It sends the pseudo-gradient θ - w, coded, with error
feedback. The outer optimizer takes a step with the mean of all pseudo-gradients, and every worker goes on from the new θ. All workers
compute the same θ, bit for bit, so nobody sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from perbit.plan.plan import PlanLike, as_plan
from perbit.torch.averaging import Memory, all_reduce
from perbit.torch.errorfeedback import trained_parameters
from perbit.torch.tensors import cast, strided

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def nesterov(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """DiLoCo's outer optimizer: SGD with rate 0.7 and Nesterov momentum 0.9."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


class LocalSteps:
    """Counts local steps; after `every` of them it averages. Call `step()` after each step of your own optimizer.

    Making it gives every rank the parameters and buffers of the first one.

    Args:
        model: what is trained; its parameters that need gradients are averaged, and its buffers of floats (exactly). Others stay local.
        spec: a spec for the large parameters (small and one-dimensional ones then go as they are), or a Plan.
        every: how many local steps make a round.
        outer: makes the optimizer of the shared model from its parameters; None for DiLoCo's, `nesterov`.
        error_feedback: True: what a biased codec (top-k, rd) did not send is added the next time; unbiased codecs need no memory.
            A number γ between 0 and 1: every codec that is not exact has a memory, which counts γ times. False: no memory.
        seed: of all random choices; every rank, round and parameter draws its own.
        group: the ranks that train together; None for all.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        spec: PlanLike,
        *,
        every: int,
        outer: MakeOptimizer | None = None,
        error_feedback: bool | float = True,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is a number of local steps, at least 1, got {every}")
        self.plan, self.every = as_plan(spec), every
        self.memory = Memory(group, error_feedback=error_feedback, seed=seed)
        self.local = {name: strided(x, name) for name, x in trained_parameters(model).items()}
        if not self.local:
            raise ValueError("the model has no parameter that needs a gradient")
        self._buffers = {name: x for name, x in model.named_buffers() if x.is_floating_point() and x.numel()}
        _take_from_first({**self.local, **self._buffers}, group)
        self.shared = {name: torch.nn.Parameter(_wide(x)) for name, x in self.local.items()}
        self.optimizer = (outer or nesterov)(list(self.shared.values()))
        self.n_local = 0  # steps since the last round
        self.n_skipped = 0  # rounds in which a worker had no finite model

    def step(self) -> bool:
        """Count a local step; True if it was the last of a round, and the model is now the shared one."""
        self.n_local += 1
        if self.n_local < self.every:
            return False
        self.synchronize()
        return True

    @torch.no_grad()
    def synchronize(self) -> None:
        """End the round now, as all ranks must do together: average, take an outer step, go on from the shared model.

        If the model of any worker is not finite, all of them go back to the shared model, and the round is skipped.
        """
        change = {name: shared - self.local[name] for name, shared in self.shared.items()}
        all_reduce(change, self.plan, memory=self.memory)
        if all(bool(mean.isfinite().all()) for mean in change.values()):
            for name, shared in self.shared.items():
                shared.grad = change[name]
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            self.n_skipped += 1
        for name, shared in self.shared.items():
            self.local[name].copy_(cast(shared.detach(), self.local[name].dtype))
        if self._buffers:
            all_reduce(self._buffers, "raw", self.memory._process_group)
        self.n_local = 0

    def metrics(self) -> dict[str, float]:
        """Those of `perbit.torch.Memory`, where a step is a round; rounds that were skipped; local steps since the last round."""
        return {**self.memory.metrics(), "skipped": self.n_skipped, "local_steps": self.n_local}

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the model and the local optimizer, which the user saves. Each rank has its own: save all three for every rank."""
        return {
            **self._settings(),
            "memory": self.memory.state_dict(),
            "shared": {name: x.detach().clone() for name, x in self.shared.items()},
            "optimizer": self.optimizer.state_dict(),
            "n_local": self.n_local,
            "n_skipped": self.n_skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()` of the same rank, with the same model, spec and length of a round."""
        for key, mine in self._settings().items():
            if state[key] != mine:
                raise ValueError(f"the checkpoint was made with {key} {state[key]!r}, this run has {mine!r}")
        shapes = {name: x.shape for name, x in self.shared.items()}
        if {name: x.shape for name, x in state["shared"].items()} != shapes:
            raise ValueError("the checkpoint is of another model")
        self.memory.load_state_dict(state["memory"])
        with torch.no_grad():
            for name, x in self.shared.items():
                x.copy_(state["shared"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.n_local, self.n_skipped = int(state["n_local"]), int(state["n_skipped"])

    def _settings(self) -> dict[str, Any]:
        return {"spec": str(self.plan), "every": self.every, "error_feedback": self.memory.error_feedback}


def _wide(x: torch.Tensor) -> torch.Tensor:
    """A copy in which small outer steps are not lost: float32, or float64 for float64."""
    return x.detach().to(torch.promote_types(x.dtype, torch.float32), copy=True)


def _take_from_first(tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Give all ranks the values of the first one, as bytes: gloo does not know every dtype."""
    first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
    for x in tensors.values():
        if x.numel():
            value = x.detach().contiguous().flatten()
            dist.broadcast(value.view(torch.uint8), first, group)
            x.detach().copy_(value.view(x.shape))
