"""PyTorch DistributedDataParallel: gradients travel as coded bytes.

    state = ddp.State("topk(0.01) | qsgd(15) | rans", model)
    model.register_comm_hook(state, ddp.hook)

Buckets are encoded on one thread and exchanged on another while backward goes on. Every rank ends a step with the same bits.
"""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with the types themselves.

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future as Pending
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from perbit import extras

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.engines.ddp") from error
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, where type checkers find it

from perbit.coding.codec import as_pipeline
from perbit.engines.collective.buckets import Bucket, BucketGradients, CodedParameter, plan_by_parameter
from perbit.engines.collective.bytegroup import ByteGroup, own_group
from perbit.engines.collective.feedback import Memories, check_decay, decay
from perbit.engines.collective.reduction import Gathered, Reduction, Sharded
from perbit.errors import EncodeError
from perbit.plan.plan import PlanLike

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class State:
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
        self.plan = plan_by_parameter(plan)
        check_decay(error_feedback)
        self.error_feedback, self.seed = error_feedback, seed
        self.gather_up_to, self.timeout = gather_up_to, timeout
        self.step = 0
        self.dense_bytes = 0  # what a ring all-reduce of the same gradients would have sent from this rank
        self.seconds = {"encode": 0.0, "exchange": 0.0}  # busy time of the two threads; exchange includes waiting
        self.memories = Memories()
        self._process_group = process_group
        self._names: dict[torch.Tensor, str] = {}
        self._buckets: dict[tuple[tuple[str, int], ...], Bucket] = {}
        self._running: _Running | None = None
        if model is not None:
            self.name_parameters(model)

    def name_parameters(self, model: torch.nn.Module) -> None:
        """Take over the names of a model's parameters (of the module inside, for a DistributedDataParallel)."""
        inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        self._names = {parameter: name for name, parameter in inner.named_parameters()}

    @property
    def sent_bytes(self) -> int:
        """Bytes this rank has sent so far: frames, lengths and padding."""
        return self._running.group.sent_bytes if self._running else 0

    @property
    def ratio(self) -> float:
        """How many times less than a float32 ring all-reduce that is."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else float("nan")

    # --- one bucket --------------------------------------------------------------------------------------------------

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start averaging a bucket; the future holds its buffer once that is done."""
        buffer = bucket.buffer()
        _check(buffer)
        if self._running is None:
            self._running = _Running(self)
        values = buffer.to(torch.float32)  # the buffer itself for float32
        gradients = BucketGradients(self._bucket(bucket), values.numpy(), self.step, bucket.index())
        world = self._running.group.world
        self.dense_bytes += 2 * (world - 1) * buffer.numel() * 4 // world
        self.step += bucket.is_last()
        done: torch.futures.Future[Any] = torch.futures.Future()

        def settle(outcome: BaseException | None) -> None:
            if outcome is None and values is not buffer:
                buffer.copy_(values)
            done.set_result(outcome or buffer)

        self._running.start(gradients, settle)
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
        shape, n = tuple(parameter.shape), parameter.numel()
        codec = as_pipeline(self.plan.codec_for(name, shape))
        return CodedParameter(name, shape, codec, decay(self.error_feedback, codec, n), at, at + n)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as numbers and tensors. Each rank has its own memories: save one for every rank."""
        memory = {name: torch.from_numpy(array) for name, array in self.memories.copies().items()}
        return {"step": self.step, "seed": self.seed, **self._place(), "memory": memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()` of the same rank."""
        place = self._place()
        if any(state[key] != place[key] for key in place):
            raise ValueError(
                f"this is the state of rank {state['rank']} of {state['world']}, loaded by rank {place['rank']} of {place['world']}; "
                "error memories belong to a rank: load its own, or none to start with empty ones"
            )
        self.step, self.seed = int(state["step"]), int(state["seed"])
        self.memories.load(state["memory"])
        if self._running:
            self._running.restart(self)

    def rescale(self, factor: float) -> None:
        """Tell the memories that gradients come in another unit from now on: with a loss scaler, new scale over old scale."""
        self.memories.scale(factor)

    def _place(self) -> dict[str, int]:
        return {"rank": dist.get_rank(self._process_group), "world": dist.get_world_size(self._process_group)}

    def __getstate__(self) -> dict[str, Any]:
        """Process groups, threads and parameters are not pickled; after unpickling, call `name_parameters`."""
        return self.__dict__ | {"_process_group": None, "_running": None, "_names": {}, "_buckets": {}}


def hook(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: `model.register_comm_hook(state, hook)`."""
    return state.reduce(bucket)


class _Running:
    """The group and the two threads of a state in use."""

    def __init__(self, state: State) -> None:
        self.group = ByteGroup(own_group(state._process_group, state.timeout))
        self.seconds = state.seconds
        self.failure: BaseException | None = None
        self.encoder = ThreadPoolExecutor(1, thread_name_prefix="perbit-encode")
        self.exchanger = ThreadPoolExecutor(1, thread_name_prefix="perbit-exchange")
        self.restart(state)

    def restart(self, state: State) -> None:
        kind = Gathered if self.group.world <= state.gather_up_to else Sharded
        self.reduction: Reduction = kind(self.group, state.memories, state.seed)

    def start(self, gradients: BucketGradients, settle: Callable[[BaseException | None], None]) -> None:
        """Encode and exchange a bucket after those before it; both threads keep the order in which buckets came."""
        coded = self.encoder.submit(self._encode, gradients)
        self.exchanger.submit(self._finish, gradients, coded, settle)

    def _encode(self, gradients: BucketGradients) -> list[bytes]:
        begin = time.perf_counter()
        frames = self.reduction.encode(gradients)
        self.seconds["encode"] += time.perf_counter() - begin
        return frames

    def _finish(
        self, gradients: BucketGradients, coded: Pending[list[bytes]], settle: Callable[[BaseException | None], None]
    ) -> None:
        try:
            if self.failure is not None:  # what the others wait for did not go out: nothing else may take its place
                raise self.failure
            frames = coded.result()
            begin = time.perf_counter()
            self.reduction.finish(gradients, frames)
            self.seconds["exchange"] += time.perf_counter() - begin
        except BaseException as error:
            self.failure = error
            settle(error)
        else:
            settle(None)


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
    if buffer.device.type != "cpu":
        raise EncodeError(f"perbit codes gradients on the CPU, these are on {buffer.device}; train on the CPU with backend gloo")  # fmt: skip
