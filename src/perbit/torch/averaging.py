"""The mean of named tensors over all ranks of a process group, by coded frames: an all-reduce with a memory."""

from __future__ import annotations

import secrets
from functools import cache
from itertools import accumulate

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_group

from perbit.coding.values import Shape, size
from perbit.errors import EncodeError
from perbit.plan.plan import Chooser, PlanLike
from perbit.torch.collective.buckets import Bucket, BucketGradients, CodedParameter, plan_by_parameter, ring_bytes
from perbit.torch.collective.bytegroup import ByteGroup, for_bytes
from perbit.torch.collective.reduction import Reduction, reduction_for
from perbit.torch.device import serves, vector_of
from perbit.torch.frames import named_mapping
from perbit.torch.kept import KeptByRank
from perbit.torch.tensors import Tensors, cast, strided


class Memory(KeptByRank):
    """What `all_reduce` keeps from call to call: error memories by name, the number of calls, and what was sent.

    Args:
        group: the ranks that average; None for all.
        error_feedback: True: what a biased codec (top-k, sign) did not send is added the next time; unbiased codecs need no memory.
            A number γ between 0 and 1: every codec that is not exact has a memory, which counts γ times. False: no memory.
        seed: of all random choices; every rank, call and tensor draws its own.
        gather_up_to: with more ranks than this, each rank averages a piece of every tensor instead of all of them.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        error_feedback: bool | float = True,
        seed: int = 0,
        gather_up_to: int = 4,
    ) -> None:
        super().__init__(error_feedback, seed, group)
        self.gather_up_to = gather_up_to
        self._bytes: ByteGroup | None = None

    def average(self, tensors: Tensors, plan: PlanLike) -> None:
        """Replace the tensors by their mean; see `all_reduce`."""
        targets = {name: _checked(x, name) for name, x in named_mapping(tensors).items()}
        bucket = _bucket_of(plan, targets, self.error_feedback)
        values = _flat(bucket, targets)
        reduction = self._reduction()
        self.traffic.begin_step()
        self.follow_scale()
        self.traffic.dense_bytes += ring_bytes(values.numel(), reduction.group.world)
        vector = vector_of(values) if bucket.works_afar else values.numpy()
        gradients = BucketGradients(bucket, vector, self.step, index=0)
        with self.traffic.timed("encode"):
            frames = reduction.encode(gradients)
        with self.traffic.timed("exchange"):
            reduction.finish(gradients, frames)
        self.step += 1
        for parameter in bucket.parameters:
            x = targets[parameter.name]
            x.copy_(cast(values[parameter.start : parameter.stop].view(x.shape), x.dtype))

    def _reduction(self) -> Reduction:
        if self._bytes is None:
            group = for_bytes(self._process_group or _get_default_group())
            self._bytes = ByteGroup(group, self.traffic)
        return reduction_for(self._bytes, self.memories, self.seed, self.gather_up_to)


def all_reduce(
    tensors: Tensors, spec: PlanLike, group: dist.ProcessGroup | None = None, memory: Memory | None = None
) -> dict[str, float]:
    """Replace named tensors by their mean over all ranks, which send them as coded frames. Every rank gets the same bits.

    All ranks make the same calls: the same names, shapes and spec, in the same order. The bytes travel by gloo. If the group has another
    backend (NCCL), a gloo group of its ranks is made once. If a value on any rank is NaN or infinite, the mean is NaN on every rank.

    Args:
        tensors: floats by name, on any device. They are changed in place, when all frames have arrived.
        spec: a spec for the large tensors (small and one-dimensional ones then go as they are), or a Plan.
        group: the ranks that average; None for all, or those of the memory.
        memory: what is kept between calls. Without it nothing is: what a codec leaves out is lost.

    Returns:
        The metrics of this call: `bytes` sent from this rank, `ratio` to a float32 ring, `encode_seconds`, `exchange_seconds`, of these
        `wait_seconds` in the network, and totals over all calls with this memory.
    """
    if memory is not None and group is not None and group is not memory._process_group:
        raise ValueError("the memory belongs to another group; make it for this one: Memory(group)")
    kept = Memory(group, error_feedback=False, seed=secrets.randbits(63)) if memory is None else memory
    kept.average(tensors, spec)
    return kept.traffic.metrics()


def _checked(x: object, name: str) -> torch.Tensor:
    tensor = strided(x, name)
    if not tensor.is_floating_point():
        raise EncodeError(f"tensor {name!r} is {tensor.dtype}; only floats can be averaged")
    return tensor


def _flat(bucket: Bucket, tensors: Tensors) -> torch.Tensor:
    """All values as float32, in memory of their own: where the first one lies if coders have kernels there, else on the CPU."""
    there = next(iter(tensors.values())).device
    flat = torch.empty(bucket.n, device=there if bucket.works_afar and serves(there) else None)
    for parameter in bucket.parameters:
        flat[parameter.start : parameter.stop].view(parameter.shape).copy_(tensors[parameter.name])
    return flat


def _bucket_of(plan: PlanLike, tensors: Tensors, error_feedback: bool | float) -> Bucket:
    if not tensors:
        raise EncodeError("there are no tensors to average")
    chooser = plan_by_parameter(plan)
    shapes = tuple((name, tuple(x.shape)) for name, x in tensors.items())
    return _bucket(chooser, repr(chooser), shapes, error_feedback)


@cache  # a program averages a few sets of tensors, again and again
def _bucket(plan: Chooser, written: str, shapes: tuple[tuple[str, Shape], ...], error_feedback: bool | float) -> Bucket:
    """By the plan as it is written, too: equal codecs may be written differently, and their frames say so."""
    starts = accumulate((size(shape) for _, shape in shapes), initial=0)
    parameters = [
        CodedParameter.of(name, shape, plan.codec_for(name, shape), error_feedback, start)
        for (name, shape), start in zip(shapes, starts, strict=False)
    ]
    return Bucket(tuple(parameters), is_whole=True)
