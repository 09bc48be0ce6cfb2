"""PyTorch DistributedDataParallel: gradients travel as coded bytes.

    state = ddp.compress(model, "topk(0.01) | qsgd(15) | rans")

which is short for

    state = ddp.State("topk(0.01) | qsgd(15) | rans", model)
    model.register_comm_hook(state, ddp.hook)

Buckets are encoded on one thread and exchanged on another while backward goes on. Every rank ends a step with the same bits.
"""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with the types themselves.

from collections.abc import Mapping
from concurrent.futures import Future as Pending
from datetime import timedelta
from typing import Any

from perbit import extras

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.engines.ddp") from error
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, where type checkers find it

from perbit.errors import EncodeError
from perbit.plan.plan import PlanLike
from perbit.torch.collective.buckets import Bucket, CodedParameter, plan_by_parameter, ring_bytes
from perbit.torch.collective.bytegroup import ByteGroup, own_group
from perbit.torch.collective.devices import staging_for
from perbit.torch.collective.pipeline import Pipeline
from perbit.torch.collective.reduction import reduction_for
from perbit.torch.kept import KeptByRank

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def compress(model: torch.nn.Module, plan: PlanLike, **options: Any) -> "State":
    """Send the gradients of a DistributedDataParallel as coded bytes; see `State` for the options.

    The model may be wrapped once more, as trainers and `torch.compile` do.
    """
    inner: Any = model
    while not isinstance(inner, torch.nn.parallel.DistributedDataParallel):
        inner = getattr(inner, "_orig_mod", getattr(inner, "module", None))
        if inner is None:
            raise ValueError(
                f"expected a DistributedDataParallel, got {type(model).__name__}; with one process nothing is sent"
            )
    state = State(plan, inner, **{"process_group": inner.process_group, **options})
    inner.register_comm_hook(state, hook)
    return state


class State(KeptByRank):
    """What the hook keeps between steps: the plan, an error memory for each parameter, the step, and what was sent.

    Args:
        plan: a spec for all large parameters, or a Plan. With a spec, small and one-dimensional parameters (biases, norms) go raw.
        model: gives parameters their names, for the rules of a plan and for checkpoints. Without it they are numbered as DDP shows them.
        error_feedback: True: what a biased codec (top-k, sign) did not send is added to the next gradient; unbiased codecs need no
            memory. A number γ between 0 and 1: every codec that is not exact has a memory, which counts γ times. False: no memory.
        seed: of all random choices; every rank, step and parameter draws its own.
        process_group: that of the DDP model, if it is not the default one.
        gather_up_to: with more ranks than this, each rank averages a piece of every parameter instead of all of them.
        timeout: how long to wait for a rank that hangs before `backward()` raises; None: as long as the process group does.
    """

    def __init__(
        self,
        plan: PlanLike,
        model: torch.nn.Module | None = None,
        *,
        error_feedback: bool | float = True,
        seed: int = 0,
        process_group: dist.ProcessGroup | None = None,
        gather_up_to: int = 4,
        timeout: timedelta | None = None,
    ) -> None:
        super().__init__(error_feedback, seed, process_group)
        self.plan = plan_by_parameter(plan)
        self.gather_up_to, self.timeout = gather_up_to, timeout
        self._is_between_steps = True
        self._names: dict[torch.Tensor, str] = {}
        self._buckets: dict[tuple[tuple[str, int], ...], Bucket] = {}
        self._running: _Running | None = None
        if model is not None:
            self.name_parameters(model)

    def name_parameters(self, model: torch.nn.Module) -> None:
        """Take over the names of a model's parameters (of the module inside, for a DistributedDataParallel)."""
        inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        self._names = {parameter: name for name, parameter in inner.named_parameters()}

    # --- one bucket --------------------------------------------------------------------------------------------------

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start averaging a bucket; the future holds its buffer once that is done."""
        buffer = bucket.buffer()
        _check(buffer)
        if self._running is None:
            self._running = _Running(self, buffer.device)
        if self._is_between_steps:
            self.traffic.begin_step()
            self.follow_scale()
        self._is_between_steps = bucket.is_last()
        self.traffic.dense_bytes += ring_bytes(buffer.numel(), self._running.group.world)
        devices: list[int | str | torch.device] = [] if buffer.device.type == "cpu" else [buffer.device]
        done: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        pending = self._running.average(buffer, self._bucket(bucket), self.step, bucket.index())
        self.step += bucket.is_last()
        pending.add_done_callback(lambda ended: done.set_result(ended.exception() or buffer))
        return done.then(_result)

    def _bucket(self, bucket: GradBucket) -> Bucket:
        """The parameters of a bucket; DDP makes new buckets after the first step, then they stay."""
        start = int(bucket.buffer().storage_offset())
        named = [(self._names.setdefault(p, str(len(self._names))), p) for p in bucket.parameters()]
        offsets = [int(gradient.storage_offset()) - start for gradient in bucket.gradients()]
        key = tuple(zip((name for name, _ in named), offsets, strict=True))
        if key not in self._buckets:
            self._buckets[key] = Bucket(
                tuple(self._parameter(name, p, at) for (name, p), at in zip(named, offsets, strict=True))
            )
        return self._buckets[key]

    def _parameter(self, name: str, parameter: torch.Tensor, at: int) -> CodedParameter:
        shape = tuple(parameter.shape)
        return CodedParameter.of(name, shape, self.plan.codec_for(name, shape), self.error_feedback, at)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()` of the same rank."""
        super().load_state_dict(state)
        if self._running:
            self._running.restart(self)

    def __getstate__(self) -> dict[str, Any]:
        """Process groups, threads and parameters are not pickled; after unpickling, call `name_parameters`."""
        return self.__dict__ | {"_process_group": None, "_running": None, "_names": {}, "_buckets": {}}


def hook(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: `model.register_comm_hook(state, hook)`."""
    return state.reduce(bucket)


class _Running:
    """The group, the staging and the threads of a state in use."""

    def __init__(self, state: State, device: torch.device) -> None:
        self.group = ByteGroup(own_group(state._process_group, state.timeout), state.traffic)
        self.staging = staging_for(device, state.plan.default)
        self.pipeline = Pipeline()
        self.restart(state)

    def restart(self, state: State) -> None:
        self.reduction = reduction_for(self.group, state.memories, state.seed, state.gather_up_to)

    def average(self, buffer: torch.Tensor, bucket: Bucket, step: int, index: int) -> Pending[None]:
        return self.pipeline.average(buffer, bucket, step, index, self.reduction, self.staging)


def _result(done: torch.futures.Future[Any]) -> torch.Tensor:
    """The buffer; an error of a thread becomes the error of backward."""
    outcome = done.value()
    if isinstance(outcome, BaseException):
        raise outcome
    buffer: torch.Tensor = outcome
    return buffer


def _check(buffer: torch.Tensor) -> None:
    if buffer.layout != torch.strided or buffer.dtype not in _FLOATS:
        raise EncodeError(f"perbit codes dense gradients of floats, got {buffer.dtype} {buffer.layout}; for embeddings use sparse=False")  # fmt: skip
