"""What FSDP calls instead of its own collectives: see `torch.distributed.fsdp.FSDPModule.set_custom_reduce_scatter` and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from perbit.engines.fsdp.running import Awaited, wait_after_backward
from perbit.engines.fsdp.units import Unit, UnitParameter, coded_parameters
from perbit.errors import EncodeError
from perbit.torch import vectors
from perbit.torch.collective.buckets import Bucket, BucketGradients, ShardBucket, ring_bytes
from perbit.torch.collective.following import Followed
from perbit.torch.collective.reduction import Sharded, reduction_for

if TYPE_CHECKING:
    from perbit.engines.fsdp.state import State

_FOLLOWED = (torch.float32, torch.bfloat16, torch.float16)


class _Communication:
    """Memory for what comes and goes. torch's own base classes are private; it asks for these two methods alone."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class CodedReduceScatter(_Communication):
    """The reduce-scatter of one sharded module: a frame to the owner of each shard, decoded and added there in the order of ranks.

    The own shard needs no frame. NaN or infinity on any rank makes the shards of all ranks NaN; memories keep what was to be sent.
    """

    def __init__(self, state: State, unit: Unit) -> None:
        self.state, self.unit = state, unit
        self._buckets: dict[tuple[str, ...], ShardBucket] = {}

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        state, running = self.state, self.state.running()
        assert state.plan is not None
        ranks, staging = running.group(group, state.traffic), running.staging(input_tensor.device, state.plan.default)
        members = self.unit.members(output_tensor.numel(), trained=True)
        bucket, step = self._bucket(output_tensor.numel(), members), state.begin(self.unit.name)
        state.traffic.dense_bytes += 4 * (input_tensor.numel() - output_tensor.numel())
        weight, reduction = factor_of(op, ranks.world), Sharded(ranks, state.memories, state.seed)
        ticket = staging.begin(input_tensor)

        def encode() -> tuple[BucketGradients, list[bytes]]:
            gradients = BucketGradients(bucket, staging.fetch(ticket), step, index=0)
            with state.traffic.timed("encode"):
                return gradients, reduction.encode(gradients)

        def exchange(coded: Any) -> None:
            with staging.holding(ticket):
                gradients, frames = coded()
                with state.traffic.timed("exchange"):
                    parts = reduction.scatter(gradients, frames, weight)
                whole = torch.full((bucket.n,), torch.nan) if parts is None else vectors.joined(parts)
                staging.place(whole, output_tensor)

        pending = running.pipeline.start(encode, exchange)
        settle(pending, state.overlap and is_read_late(output_tensor, op, members))

    def _bucket(self, shard: int, members: list[UnitParameter]) -> ShardBucket:
        parts = self.unit.parts(shard, members)
        key = tuple(parts)
        if key not in self._buckets:
            assert self.state.plan is not None
            coded = coded_parameters(parts, self.unit, self.state.plan, self.state.error_feedback)
            self._buckets[key] = ShardBucket(coded)
        return self._buckets[key]


class PlainReduceScatter(_Communication):
    """The reduce-scatter as it is; it tells the hook after it how it reduced."""

    op: Any = None

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self.op = op
        if op in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group)
        else:  # gloo knows no premultiplied sum
            dist.reduce_scatter_tensor(output_tensor, input_tensor, op=dist.ReduceOp.SUM, group=group)
            output_tensor.mul_(factor_of(op, dist.get_world_size(group)))


class Between:
    """The hook after a reduce-scatter: the mean of the own shard over all replicas, by coded frames."""

    def __init__(self, state: State, unit: Unit, plain: PlainReduceScatter) -> None:
        self.state, self.unit, self.plain = state, unit, plain
        self._buckets: dict[tuple[str, ...], Bucket] = {}

    def __call__(self, reduced: torch.Tensor) -> None:
        state, running = self.state, self.state.running()
        assert state.replicas is not None
        assert state.plan is not None
        ranks = running.group(state.replicas, state.traffic)
        staging = running.staging(reduced.device, state.plan.default)
        members = self.unit.members(reduced.numel(), trained=True)
        bucket, step = self._bucket(reduced.numel(), members), state.begin(self.unit.name)
        state.traffic.dense_bytes += ring_bytes(reduced.numel(), ranks.world)
        reduction = reduction_for(ranks, state.memories, state.seed, state.gather_up_to)
        pending = running.pipeline.average(reduced, bucket, step, 0, reduction, staging)
        settle(pending, state.overlap and is_read_late(reduced, self.plain.op, members))

    def _bucket(self, shard: int, members: list[UnitParameter]) -> Bucket:
        parts = self.unit.parts(shard, members)
        key = tuple(parts)
        if key not in self._buckets:
            assert self.state.plan is not None
            self._buckets[key] = Bucket(coded_parameters(parts, self.unit, self.state.plan, self.state.error_feedback))
        return self._buckets[key]


class CodedAllGather(_Communication):
    """The all-gather of one sharded module: the copy that all ranks hold, after the coded differences of this moment.

    Where nothing has changed since the last time (the backward pass gathers what the forward pass did), a rank sends eight bytes.
    """

    def __init__(self, state: State, unit: Unit) -> None:
        self.state, self.unit = state, unit

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        if input_tensor.dtype not in _FOLLOWED:
            work: dist.Work | None = dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
            return work
        state, running = self.state, self.state.running()
        traffic = state.parameter_traffic
        ranks, staging = running.group(group, traffic), running.staging(input_tensor.device)
        state.begin_gather()
        followed = self._followed(input_tensor.numel(), ranks.world)
        traffic.dense_bytes += input_tensor.numel() * input_tensor.element_size() * (ranks.world - 1)
        ticket = staging.begin(input_tensor)

        def encode() -> tuple[bytes, bytes]:
            values = staging.fetch(ticket)
            assert isinstance(values, np.ndarray)  # no codec was named that might code them elsewhere
            with traffic.timed("encode"):
                return followed.encode(values, ranks.rank)

        def exchange(coded: Any) -> None:
            with staging.holding(ticket):
                first, change = coded()
                with traffic.timed("exchange"):
                    copy = followed.follow(first, change, ranks)
                staging.place(torch.from_numpy(copy), output_tensor)

        return Awaited(running.pipeline.start(encode, exchange))

    def _followed(self, shard: int, world: int) -> Followed:
        key = f"{self.unit.name}/{world}"
        found = self.state.followed.get(key)
        if found is None:
            assert self.state.parameter_plan is not None
            parts = self.unit.parts(shard, self.unit.members(shard, trained=False))
            coded = coded_parameters(parts, self.unit, self.state.parameter_plan, False)
            found = self.state.follow(key, Followed(Bucket(coded), self.state.seed))
        return found


def settle(pending: Future[None], later: bool) -> None:
    if later:
        wait_after_backward(pending)
    else:
        pending.result()


def is_read_late(reduced: torch.Tensor, op: Any, members: list[UnitParameter]) -> bool:
    """Whether nobody reads reduced gradients before backward ends: FSDP makes views of them and does nothing else.

    It divides after a sum, casts to another dtype or device, adds to gradients that are there already, averages over replicas, calls hooks.
    """
    parameters = [member.sharded for member in members]
    return bool(parameters and op is not None and op != dist.ReduceOp.SUM) and all(
        parameter.dtype == reduced.dtype
        and parameter.device == reduced.device
        and parameter.grad is None
        and parameter.device_mesh.ndim == 1
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
        for parameter in parameters
    )


def factor_of(op: Any, world: int) -> float:
    """What a sum is multiplied with."""
    if op == dist.ReduceOp.AVG:
        return 1 / world
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.PREMUL_SUM:
        _, factor = op.__getstate__()  # what pickling sees; it has no other name
        return float(factor)
    raise EncodeError(f"perbit reduces by sum, average or premultiplied sum, got {op}")
