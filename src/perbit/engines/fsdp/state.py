"""What is kept between steps for all sharded modules of a model, and the call that sets it up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from perbit.engines.fsdp.communication import Between, CodedAllGather, CodedReduceScatter, PlainReduceScatter
from perbit.engines.fsdp.running import Running
from perbit.engines.fsdp.units import units_of
from perbit.plan.plan import PlanLike
from perbit.torch.collective.buckets import plan_by_parameter
from perbit.torch.collective.following import Followed
from perbit.torch.kept import KeptByRank
from perbit.torch.traffic import Traffic, ratio


def compress(
    model: torch.nn.Module,
    plan: PlanLike | None,
    *,
    parameters: PlanLike | None = None,
    replicas: dist.ProcessGroup | DeviceMesh | None = None,
    error_feedback: bool | float = True,
    seed: int = 0,
    overlap: bool = True,
    gather_up_to: int = 4,
) -> State:
    """Send what every sharded module in `model` sends as coded bytes; see `State` for the arguments."""
    units = units_of(model)
    if not units:
        raise ValueError("the model has no sharded module; call fully_shard first")
    if plan is None and (parameters is None or replicas is not None):
        raise ValueError("nothing to code: give a plan for gradients, or parameters=")
    group = replicas.get_group() if isinstance(replicas, DeviceMesh) else replicas
    state = State(
        plan, parameters=parameters, replicas=group, error_feedback=error_feedback, seed=seed, overlap=overlap,
        gather_up_to=gather_up_to,
    )  # fmt: skip
    for name, (module, unit) in units.items():
        if group is not None:
            plain = PlainReduceScatter()
            module.set_custom_reduce_scatter(cast(Any, plain))
            module.set_all_reduce_hook(Between(state, unit, plain))
        elif plan is not None:
            module.set_custom_reduce_scatter(cast(Any, CodedReduceScatter(state, unit)))
        if parameters is not None:
            module.set_custom_all_gather(cast(Any, CodedAllGather(state, unit)))
        state.modules.append(name)
    if group is not None:
        _make_equal(model, group)
    return state


class State(KeptByRank):
    """What is kept between steps for all sharded modules of a model; `compress` makes it.

    Args:
        plan: how gradients are coded: a spec for all large parameters, or a Plan. With a spec, small and one-dimensional parameters (biases,
            norms) go raw. None: gradients travel as they are.
        parameters: how the differences of parameters to what all ranks hold already are coded, for the all-gather before they are used.
            None: parameters travel as they are.
        replicas: the ranks that hold the same shard, where the model is replicated besides: a mesh or a group. Then gradients are reduced
            to their owners as they are, and the average over the replicas, which has the slow link, is what is coded.
        error_feedback: True: what a biased codec (top-k, sign) did not send is added to the next gradient; unbiased codecs need no
            memory. A number γ between 0 and 1: every codec that is not exact has a memory, which counts γ times. False: no memory.
        seed: of all random choices; every rank, step and parameter draws its own.
        overlap: whether backward goes on while gradients travel. Set it to False if you have an all-reduce hook of your own.
        gather_up_to: with more replicas than this, each one averages a piece of every parameter instead of all of them.
    """

    def __init__(
        self,
        plan: PlanLike | None,
        *,
        parameters: PlanLike | None = None,
        replicas: dist.ProcessGroup | None = None,
        error_feedback: bool | float = True,
        seed: int = 0,
        overlap: bool = True,
        gather_up_to: int = 4,
    ) -> None:
        super().__init__(error_feedback, seed)
        self.plan = None if plan is None else plan_by_parameter(plan)
        self.parameter_plan = None if parameters is None else plan_by_parameter(parameters)
        self.replicas, self.overlap, self.gather_up_to = replicas, overlap, gather_up_to
        self.modules: list[str] = []
        self.steps: dict[str, int] = {}  # of each module
        self.parameter_traffic = Traffic()
        self.followed: dict[str, Followed] = {}
        self._loaded: dict[str, Mapping[str, Any]] = {}  # of what is not used yet
        self._is_after_backward = True
        self._running: Running | None = None

    @property
    def parameter_ratio(self) -> float:
        """How many times fewer bytes the all-gathers of parameters sent than without compression."""
        return ratio(self.parameter_traffic.dense_bytes, self.parameter_traffic.sent_bytes)

    def metrics(self) -> dict[str, float]:
        """As for DDP; what is about parameters begins with `parameter_`."""
        if self.parameter_plan is None:
            return super().metrics()
        parameter = {f"parameter_{key}": value for key, value in self.parameter_traffic.metrics().items()}
        return {**super().metrics(), **parameter}

    def running(self) -> Running:
        if self._running is None:
            self._running = Running()
        return self._running

    def begin(self, module: str) -> int:
        """The number of this step of a module. The first module that comes to a step begins it."""
        step = self.steps.get(module, 0)
        self.steps[module] = step + 1
        self._is_after_backward = True
        if step >= self.step:
            self.step = step + 1
            self.traffic.begin_step()
            self.follow_scale()
        return step

    def begin_gather(self) -> None:
        """The first parameters after a backward pass begin a step."""
        if self._is_after_backward:
            self._is_after_backward = False
            self.parameter_traffic.begin_step()

    def follow(self, key: str, made: Followed) -> Followed:
        """What all ranks hold of a module: as `made`, unless it is there already or in a checkpoint."""
        if key not in self.followed:
            self.followed[key] = made
            if key in self._loaded:
                made.load_state_dict(self._loaded.pop(key))
        return self.followed[key]

    def state_dict(self) -> dict[str, Any]:
        """Numbers and tensors for a checkpoint. Each rank has its own memories: save one for every rank."""
        followed = {**self._loaded, **{key: copy.state_dict() for key, copy in self.followed.items()}}
        return {**super().state_dict(), "steps": dict(self.steps), "parameters": followed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()` of the same rank."""
        steps = dict(state["steps"])
        super().load_state_dict({"step": max(steps.values(), default=0), **state})
        self.steps, self._loaded = steps, dict(state.get("parameters", {}))
        self.followed.clear()


def _make_equal(model: torch.nn.Module, replicas: dist.ProcessGroup) -> None:
    """All replicas begin with what the first one holds."""
    for tensor in (*model.parameters(), *model.buffers()):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        dist.broadcast(local.detach(), group=replicas, group_src=0)
