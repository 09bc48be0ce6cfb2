"""Experimental: FSDP2 (`fully_shard`) with gradients that travel to their owners as coded bytes.

    fully_shard(model)
    state = fsdp.compress(model, "topk(0.01) | qsgd(15) | rans")

Gradients only: the all-gather of parameters stays as it is. The base class of the collective is not public in torch, hence experimental.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from perbit.codec import Pipeline, as_pipeline
from perbit.engines.bytegroup import ByteGroup
from perbit.engines.coding import Sheet
from perbit.engines.feedback import Memories, check_decay, decay, fed
from perbit.errors import EncodeError
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.plan import CodecLike, codec
from perbit.randomness import fold, key_from_seed


def compress(model: torch.nn.Module, spec: CodecLike, *, error_feedback: bool | float = True, seed: int = 0) -> State:
    """Send the gradients of every sharded module in `model` as `spec`. FSDP joins the parameters of a module, so they share the spec."""
    state = State(as_pipeline(codec(spec)), error_feedback, seed)
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(CodedReduceScatter(state, name))
            state.modules.append(name)
    if not state.modules:
        raise ValueError("the model has no sharded module; call fully_shard first")
    return state


class State:
    """What is kept between steps, for all sharded modules of a model: error memories, step counters, bytes sent."""

    def __init__(self, spec: Pipeline, error_feedback: bool | float, seed: int) -> None:
        check_decay(error_feedback)
        self.codec, self.error_feedback, self.seed = spec, error_feedback, seed
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

    def __init__(self, state: State, name: str) -> None:
        self.state, self.name = state, name

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
        ranks = self.state.group(group)
        shards = input_tensor.to(torch.float32).numpy().reshape(ranks.world, -1)
        self.state.dense_bytes += 4 * (shards.size - shards[0].size)
        total = self._reduce(shards, ranks, _weight(op, ranks.world))
        output_tensor.copy_(torch.from_numpy(total).view_as(output_tensor))

    def _reduce(self, shards: F32, ranks: ByteGroup, weight: float) -> F32:
        state, step = self.state, self.state.steps.get(self.name, 0)
        state.steps[self.name] = step + 1
        sheet = Sheet.of([(self.name, shards[0].shape, state.codec)])
        others = [rank for rank in range(ranks.world) if rank != ranks.rank]
        sending, frames = self._encoded(shards, others, ranks.rank, sheet, step)
        arrived = ranks.exchange(frames)
        if not sending or not all(len(arrived[rank]) for rank in others):
            return np.full(shards[0].shape, np.nan, np.float32)
        total: F32 = np.zeros(shards[0].shape, np.float32)
        for rank, frame in enumerate(arrived):
            if rank == ranks.rank:
                K.axpy(total, shards[rank], weight)
            else:
                sheet.add(frame, [total], weight, step)
                sheet.add(frames[rank], [sending[rank]], -1.0, step)  # delivered: what is left is the memory
        return total

    def _encoded(
        self, shards: F32, others: list[int], own: int, sheet: Sheet, step: int
    ) -> tuple[dict[int, F32], list[bytes]]:
        """What is sent to each other rank, and its frame; nothing if the gradient is not finite."""
        frames = [b""] * len(shards)
        lowest, highest, n_nonfinite = K.scan(shards.reshape(-1))
        if n_nonfinite:
            return {}, frames
        n, state = shards[0].size, self.state
        gamma = decay(state.error_feedback, state.codec, n)
        # which parameters of a module have gradients may change from step to step, and with it what the values mean
        memory = None if gamma is None else state.memories.of(f"{self.name}[{shards.size}]", shards.size)
        rows = None if memory is None else memory.reshape(shards.shape)
        key = fold(fold(fold(key_from_seed(state.seed), own), step), K.crc32c(self.name.encode()))
        sending = {}
        for rank in others:
            kept = None if rows is None else rows[rank]
            sending[rank] = fed(shards[rank], kept, gamma or 0.0, lowest == highest == 0)
            frames[rank] = sheet.encode([sending[rank]], [fold(key, rank)], step)
        return sending, frames


def _weight(op: Any, world: int) -> float:
    if op == dist.ReduceOp.AVG:
        return 1 / world
    if op == dist.ReduceOp.SUM:
        return 1.0
    raise EncodeError(f"perbit reduces by sum or average, got {op}; leave set_gradient_divide_factor unset")
