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

from perbit.coding.codec import as_pipeline
from perbit.coding.values import Shape, size
from perbit.engines.collective.buckets import BucketGradients, CodedParameter, ShardBucket, plan_by_parameter
from perbit.engines.collective.bytegroup import ByteGroup
from perbit.engines.collective.feedback import Memories, check_decay, decay
from perbit.engines.collective.reduction import Sharded
from perbit.errors import EncodeError
from perbit.plan.plan import PlanLike


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


class State:
    """What is kept between steps for all sharded modules of a model; `compress` makes it.

    Args:
        plan: a spec for all large parameters, or a Plan. With a spec, small and one-dimensional parameters (biases, norms) go raw.
        error_feedback: True: what a biased codec (top-k, sign) did not send is added to the next gradient; unbiased codecs need no
            memory. A number γ between 0 and 1: every codec that is not exact has a memory, which counts γ times. False: no memory.
        seed: of all random choices; every rank, step and parameter draws its own.
    """

    def __init__(self, plan: PlanLike, *, error_feedback: bool | float = True, seed: int = 0) -> None:
        check_decay(error_feedback)
        self.plan, self.error_feedback, self.seed = plan_by_parameter(plan), error_feedback, seed
        self.modules: list[str] = []
        self.memories = Memories()
        self.steps: dict[str, int] = {}
        self.dense_bytes = 0  # what a float32 reduce-scatter would have sent from this rank
        self._groups: dict[dist.ProcessGroup, ByteGroup] = {}

    @property
    def sent_bytes(self) -> int:
        """Bytes of coded gradients this rank has sent so far."""
        return sum(group.sent_bytes for group in self._groups.values())

    @property
    def ratio(self) -> float:
        """How many times less than float32 that is."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else float("nan")

    def group(self, group: dist.ProcessGroup) -> ByteGroup:
        if group not in self._groups:
            self._groups[group] = ByteGroup(group)
        return self._groups[group]

    def state_dict(self) -> dict[str, Any]:
        """Numbers and tensors for a checkpoint. Each rank has its own memories: save one for every rank."""
        memory = {name: torch.from_numpy(array) for name, array in self.memories.copies().items()}
        return {"seed": self.seed, "steps": dict(self.steps), **_place(), "memory": memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()` of the same rank."""
        place = _place()
        if any(state[key] != place[key] for key in place):
            raise ValueError(
                f"this is the state of rank {state['rank']} of {state['world']}, loaded by rank {place['rank']} of {place['world']}"
            )
        self.seed, self.steps = int(state["seed"]), dict(state["steps"])
        self.memories.load(state["memory"])


def _place() -> dict[str, int]:
    return {"rank": dist.get_rank(), "world": dist.get_world_size()}


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
        if input_tensor.device.type != "cpu":
            raise EncodeError(f"perbit codes gradients on the CPU, these are on {input_tensor.device}")
        state, ranks = self.state, self.state.group(group)
        values = input_tensor.to(torch.float32).numpy()
        shard = values.size // ranks.world
        state.dense_bytes += 4 * (values.size - shard)
        gradients = BucketGradients(self._bucket(shard), values, state.steps.get(self.name, 0), index=0)
        state.steps[self.name] = gradients.step + 1
        reduction = Sharded(ranks, state.memories, state.seed)
        parts = reduction.scatter(gradients, reduction.encode(gradients), _weight(op, ranks.world))
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
        codec = as_pipeline(plan.codec_for(name, tuple(whole.sharded_param.shape)) if whole else plan.default)
        n = size(shape)
        return CodedParameter(name, shape, codec, decay(self.state.error_feedback, codec, n), end - n, end)


def _weight(op: Any, world: int) -> float:
    if op == dist.ReduceOp.AVG:
        return 1 / world
    if op == dist.ReduceOp.SUM:
        return 1.0
    raise EncodeError(f"perbit reduces by sum or average, got {op}; leave set_gradient_divide_factor unset")
