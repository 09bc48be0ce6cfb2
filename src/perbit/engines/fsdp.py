"""Experimental: FSDP2 (`fully_shard`) with gradients that travel to their owners as coded bytes.

    fully_shard(model)
    state = fsdp.compress(model, "topk(0.01) | qsgd(15) | rans")

Gradients only: the all-gather of parameters stays as it is. Experimental, because what FSDP reduces together, and how, is not public in torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perbit import extras

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.engines.fsdp") from error
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from perbit.coding.values import Shape, size
from perbit.errors import EncodeError
from perbit.plan.plan import PlanLike
from perbit.torch.collective.buckets import BucketGradients, CodedParameter, ShardBucket, plan_by_parameter
from perbit.torch.collective.bytegroup import ByteGroup, for_bytes
from perbit.torch.collective.reduction import Sharded
from perbit.torch.kept import KeptByRank


def compress(model: torch.nn.Module, plan: PlanLike, *, error_feedback: bool | float = True, seed: int = 0) -> State:
    """Send the gradients of every sharded module in `model` as coded bytes; see `State` for the arguments."""
    state = State(plan, error_feedback=error_feedback, seed=seed)
    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(CodedReduceScatter(state, name, _parameters(module, names)))
            state.modules.append(name)
    if not state.modules:
        raise ValueError("the model has no sharded module; call fully_shard first")
    return state


def _parameters(module: FSDPModule, names: Mapping[torch.nn.Module, str]) -> dict[str, FSDPParam]:
    """The parameters that FSDP reduces together for this module, in its order, by their names in the model."""
    groups = module._get_fsdp_state()._fsdp_param_groups
    found = [parameter for group in groups for parameter in group.fsdp_params]
    infos = [parameter._module_info for parameter in found]
    full_names = [f"{names[info.module]}.{info.param_name}".removeprefix(".") for info in infos]
    return dict(zip(full_names, found, strict=True))


class State(KeptByRank):
    """What is kept between steps for all sharded modules of a model; `compress` makes it.

    Args:
        plan: a spec for all large parameters, or a Plan. With a spec, small and one-dimensional parameters (biases, norms) go raw.
        error_feedback: True: what a biased codec (top-k, sign) did not send is added to the next gradient; unbiased codecs need no
            memory. A number γ between 0 and 1: every codec that is not exact has a memory, which counts γ times. False: no memory.
        seed: of all random choices; every rank, step and parameter draws its own.
    """

    def __init__(self, plan: PlanLike, *, error_feedback: bool | float = True, seed: int = 0) -> None:
        super().__init__(error_feedback, seed)
        self.plan = plan_by_parameter(plan)
        self.modules: list[str] = []
        self.steps: dict[str, int] = {}  # of each module
        self._groups: dict[dist.ProcessGroup, ByteGroup] = {}

    def group(self, group: dist.ProcessGroup) -> ByteGroup:
        if group not in self._groups:
            self._groups[group] = ByteGroup(for_bytes(group), self.traffic)
        return self._groups[group]

    def begin(self, module: str) -> int:
        """The number of this step of a module. The first module that comes to a step begins it."""
        step = self.steps.get(module, 0)
        self.steps[module] = step + 1
        if step >= self.step:
            self.step = step + 1
            self.traffic.begin_step()
        return step

    def state_dict(self) -> dict[str, Any]:
        """Numbers and tensors for a checkpoint. Each rank has its own memories: save one for every rank."""
        return {**super().state_dict(), "steps": dict(self.steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()` of the same rank."""
        steps = dict(state["steps"])
        super().load_state_dict({"step": max(steps.values(), default=0), **state})
        self.steps = steps


class CodedReduceScatter(ReduceScatter):
    """The reduce-scatter of one sharded module: a frame to the owner of each shard, decoded and added there in the order of ranks.

    The own shard needs no frame. NaN or infinity on any rank makes the shards of all ranks NaN; memories keep what was to be sent.
    """

    def __init__(self, state: State, name: str, parameters: dict[str, FSDPParam]) -> None:
        self.state, self.name, self.parameters = state, name, parameters
        self._buckets: dict[tuple[str, ...], ShardBucket] = {}

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        state, ranks = self.state, self.state.group(group)
        values = input_tensor.to("cpu", torch.float32).numpy()
        shard = values.size // ranks.world
        gradients = BucketGradients(self._bucket(shard), values, state.begin(self.name), index=0)
        state.traffic.dense_bytes += 4 * (values.size - shard)
        reduction = Sharded(ranks, state.memories, state.seed)
        with state.traffic.timed("encode"):
            frames = reduction.encode(gradients)
        with state.traffic.timed("exchange"):
            parts = reduction.scatter(gradients, frames, _weight(op, ranks.world))
        if parts is None:
            output_tensor.fill_(torch.nan)
        else:
            output_tensor.copy_(torch.from_numpy(np.concatenate(parts)).view_as(output_tensor))

    def _bucket(self, shard: int) -> ShardBucket:
        """How a shard of so many values is made up: of all parameters that are trained, one after the other.

        If some of them got no gradient in this step, FSDP leaves them out and does not say which. Then nobody knows what the values
        belong to, and they are coded together as one large parameter.
        """
        shapes = {
            name: tuple(parameter.padded_sharded_param_size)
            for name, parameter in self.parameters.items()
            if parameter.sharded_param.requires_grad
        }
        if sum(map(size, shapes.values())) != shard:
            shapes = {f"{self.name}[{shard}]": (shard,)}
        key = tuple(shapes)
        if key not in self._buckets:
            ends = np.cumsum([size(shape) for shape in shapes.values()]).tolist()
            coded = (self._coded(name, shape, end) for (name, shape), end in zip(shapes.items(), ends, strict=True))
            self._buckets[key] = ShardBucket(tuple(coded))
        return self._buckets[key]

    def _coded(self, name: str, shape: Shape, end: int) -> CodedParameter:
        """A parameter's part of a shard. The plan chooses by the whole parameter: how many ranks share it makes no difference."""
        plan, whole = self.state.plan, self.parameters.get(name)
        codec = plan.codec_for(name, tuple(whole.sharded_param.shape)) if whole else plan.default
        return CodedParameter.of(name, shape, codec, self.state.error_feedback, end - size(shape))


def _weight(op: Any, world: int) -> float:
    if op == dist.ReduceOp.AVG:
        return 1 / world
    if op == dist.ReduceOp.SUM:
        return 1.0
    raise EncodeError(f"perbit reduces by sum or average, got {op}; leave set_gradient_divide_factor unset")
