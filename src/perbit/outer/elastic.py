"""Local steps for workers that come and go: torchft says who is there, and frames say whose work counts.

A round ends in a quorum of the workers that are alive. Each sends a digest of the model that it thinks is shared, and the frame of its
pseudo-gradient. All tell each other which frames they could read; those that everybody could read are averaged. Whoever could not be read
by somebody, or holds another model than most, is left out of this round. A worker that is new, or has missed a round, first takes over the
shared model and the outer optimizer from one that has them.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]

from perbit import extras
from perbit.coding.bits import Piece
from perbit.coding.codec import Codec
from perbit.coding.families.formats import Raw
from perbit.errors import PerbitError
from perbit.kernels.api import F32
from perbit.outer.model import MakeOptimizer, SharedModel, check_apart
from perbit.plan.plan import PlanLike
from perbit.torch.collective.buckets import Bucket, BucketGradients, CodedParameter, plan_by_parameter, ring_bytes
from perbit.torch.collective.bytegroup import ByteGroup, filled
from perbit.torch.collective.reduction import Gathered
from perbit.torch.kept import Kept
from perbit.torch.tensors import cast
from perbit.torch.traffic import Traffic

try:
    from torchft import Manager
    from torchft.checkpointing import HTTPTransport
    from torchft.process_group import ProcessGroup, ProcessGroupGloo
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.outer.elastic") from error

_DIGEST = 4  # bytes
_PAUSE = 0.2  # seconds before a quorum that failed is tried again


class HandOver(HTTPTransport[Any]):  # type: ignore[misc]
    """Serves the shared model to those who join, at the address that others know. torchft's own gives the machine's name."""

    def __init__(self, host: str, timeout: timedelta) -> None:
        self._host = host
        super().__init__(timeout=timeout, num_chunks=0)

    def address(self) -> str:
        return f"http://{self._host}:{self._server.socket.getsockname()[1]}/checkpoint/"


class QuorumGroup(ByteGroup):
    """Messages within one quorum: its process group is torchft's, which torch.distributed does not know."""

    def __init__(self, group: ProcessGroup, rank: int, traffic: Traffic) -> None:
        self.group, self.rank, self.world, self.traffic = group, rank, group.size(), traffic
        self._room: dict[int, int] = {}

    def _all_gather(self, pieces: Sequence[Piece], n_bytes: int) -> list[Any]:
        block = filled(pieces, n_bytes)
        rows = list(torch.empty((self.world, n_bytes), dtype=torch.uint8).unbind())
        with self.traffic.timed("wait"):
            self.group.allgather([rows], [block], AllgatherOptions()).wait()
        self.traffic.sent_bytes += n_bytes * (self.world - 1)
        return [row.numpy() for row in rows]


class Agreed(Gathered):
    """The mean of those frames that every rank of the quorum could read."""

    def exchange(self, gradients: BucketGradients, frame: bytes, digest: int) -> dict[int, Piece]:
        """The frames of the ranks that count, by rank; nothing has changed yet."""
        head = digest.to_bytes(_DIGEST, "little")
        arrived = self.group.gather(b"".join((head, frame)), 0)
        heads = [bytes(message[:_DIGEST]) for message in arrived]
        frames = [memoryview(message)[_DIGEST:] for message in arrived]
        common, _ = Counter(heads).most_common(1)[0]  # of equally many the first
        scratch = np.zeros_like(gradients.values)
        outs = [scratch[lo:hi] for lo, hi in gradients.bucket.in_values(0, 1)]
        readable = [h == common and self._reads(gradients, f, outs) for h, f in zip(heads, frames, strict=True)]
        votes = self.group.gather(bytes(readable), 1)
        if head != common:
            raise StaleModelError("this worker holds another model than most of the quorum")
        return {rank: frames[rank] for rank in range(self.group.world) if all(vote[rank] for vote in votes)}

    def take(self, gradients: BucketGradients, counted: Mapping[int, Piece]) -> None:
        """Replace the gradients by the mean, and take off the memories what has been delivered."""
        if self.group.rank in counted:
            self._commit(gradients, counted[self.group.rank], gradients.sending[0], 0)
        gradients.values.fill(0)
        for frame in counted.values():
            self._add(gradients, frame, self._parts(gradients, 0), 0, 1 / len(counted))

    def _reads(self, gradients: BucketGradients, frame: Piece, outs: Sequence[F32]) -> bool:
        """Whether a frame is whole. Those without one, who have nothing to send, do not count either."""
        try:
            self._add(gradients, frame, outs, 0, 1.0)
        except PerbitError:
            return False
        return True


@dataclass(frozen=True)
class Sending:
    """What a worker sends in a round, and how often it had taken over a model when it was made."""

    gradients: BucketGradients
    frame: bytes
    taken_over: int


class StaleModelError(PerbitError):
    """A worker's shared model is not that of the others: it has to take over theirs."""


class ElasticSteps:
    """`LocalSteps` for workers that come and go. Call `step()` after each step of your own optimizer.

    Making it joins the workers that are there: it waits for the end of their round and begins with their model.

    Args:
        model: what is trained, as for `LocalSteps`.
        spec: a spec for the large parameters (small and one-dimensional ones then go as they are), or a Plan.
        lighthouse: the address of torchft's lighthouse, as "http://host:29510"; `torchft_lighthouse` starts one.
        every: how many local steps make a round.
        outer: makes the optimizer of the shared model from its parameters; None for DiLoCo's, `nesterov`.
        error_feedback: as for `LocalSteps`. A worker that joins, or comes back, begins with an empty memory.
        seed: of all random choices.
        min_workers: with fewer, a round does not end; training waits for more.
        host: the name or address at which the other workers reach this one; None for the name of the machine.
        timeout: how many seconds a worker may be silent within a round before it is left out of it.
        apart: as for `LocalSteps`: what could not be sent waits in the worker's own model.
        patience: how many seconds a worker that reaches nobody goes on trying before it gives up with a TimeoutError.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        spec: PlanLike,
        *,
        lighthouse: str,
        every: int,
        outer: MakeOptimizer | None = None,
        error_feedback: bool | float = True,
        seed: int = 0,
        min_workers: int = 1,
        host: str | None = None,
        timeout: float = 60.0,
        patience: float = 3600.0,
        apart: bool = False,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is a number of local steps, at least 1, got {every}")
        check_apart(apart, error_feedback)
        self.kept, self.apart = Kept(error_feedback, seed), apart
        self.plan, self.every, self.patience = plan_by_parameter(spec), every, patience
        self.model = SharedModel(model, outer)
        self._bucket = self._bucket_of_model()
        self.n_local = self.n_skipped = self.n_left_out = self.n_taken_over = self.n_workers = 0
        limit, address = timedelta(seconds=timeout), host or socket.gethostname()
        self._store = torch.distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self._group = ProcessGroupGloo(timeout=limit)
        self.manager = Manager(
            pg=self._group,
            load_state_dict=self._take_over,
            state_dict=self._handed_over,
            min_replica_size=min_workers,
            use_async_quorum=False,
            timeout=limit,
            quorum_timeout=timedelta(seconds=patience),
            connect_timeout=limit,
            rank=0,
            world_size=1,
            store_addr=address,
            store_port=self._store.port,
            lighthouse_addr=lighthouse,
            hostname=address,
            checkpoint_transport=HandOver(address, limit),
        )
        self._end_round(contributes=False)

    def step(self) -> bool:
        """Count a local step; True if it was the last of a round, and the model is now the shared one."""
        self.n_local += 1
        if self.n_local < self.every:
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """End the round now: all workers that are alive must do so for it to end."""
        self._end_round(contributes=True)

    def metrics(self) -> dict[str, float]:
        """Those of `perbit.torch.Memory`, where a step is a round; how many workers the last round had; and counts: rounds in which
        this worker's frame was left out, times it took over the others' model, rounds that were skipped."""
        own = {
            "workers": self.n_workers,
            "left_out": self.n_left_out,
            "taken_over": self.n_taken_over,
            "skipped": self.n_skipped,
            "local_steps": self.n_local,
        }
        return {**self.kept.metrics(), **own}

    def close(self) -> None:
        """Leave the others."""
        self.manager.shutdown(wait=False)
        self._group.shutdown()

    # --- a round -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _end_round(self, contributes: bool) -> None:
        """Try until a quorum has ended the round. What is sent is coded once: error memories take it up once."""
        self.kept.traffic.begin_step()
        before, deadline = self.n_taken_over, time.monotonic() + self.patience
        sending: Sending | None = None
        while True:
            if not self._meet(deadline):
                continue
            contributes = contributes and self.n_taken_over == before
            counted: dict[int, Piece] = {}
            try:
                reduction = self._reduction()
                if sending is None or sending.taken_over != self.n_taken_over:
                    sending = self._sending(reduction, contributes)
                with self.kept.traffic.timed("exchange"):
                    counted = reduction.exchange(sending.gradients, sending.frame, self.model.digest())
            except StaleModelError as error:
                self.manager.load_state_dict(
                    {"step": 0, "batches_committed": 0}
                )  # long ago: the next quorum brings it up to date
                self.manager.report_error(error)
            except RuntimeError as error:  # a worker died, or was silent for too long
                self.manager.report_error(error)
            if self.manager.should_commit() and sending is not None:
                break
        reduction.take(sending.gradients, counted)
        self._move(sending.gradients, bool(counted))
        self.n_left_out += contributes and reduction.group.rank not in counted
        self.n_workers, self.n_local, self.kept.step = reduction.group.world, 0, self.manager.current_step()

    def _reduction(self) -> Agreed:
        """For the quorum that was found."""
        if (failed := self.manager.errored()) is not None:
            raise RuntimeError(f"the quorum could not connect: {failed}")
        group = QuorumGroup(self._group, self.manager.participating_rank() or 0, self.kept.traffic)
        return Agreed(group, self.kept.memories, self.kept.seed)

    def _sending(self, reduction: Agreed, contributes: bool) -> Sending:
        gradients = self._gradients(reduction.group.world)
        with self.kept.traffic.timed("encode"):
            frame = reduction.encode(gradients)[0] if contributes else b""
        return Sending(gradients, frame, self.n_taken_over)

    def _meet(self, deadline: float) -> bool:
        """Whether a quorum was found; its workers have equal models when this returns."""
        try:
            self.manager.start_quorum()
        except (RuntimeError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no quorum within {self.patience:g} seconds: {error}") from error
            time.sleep(_PAUSE)
            return False
        return True

    def _gradients(self, world: int) -> BucketGradients:
        """The pseudo-gradients of the parameters, and the values of the buffers."""
        flat = torch.empty(self._bucket.parameters[-1].stop)
        sent = {**self.model.change(self.model.local), **self.model.buffers}
        for parameter in self._bucket.parameters:
            flat[parameter.start : parameter.stop].view(parameter.shape).copy_(sent[parameter.name])
        self.kept.traffic.dense_bytes += ring_bytes(flat.numel(), world)
        return BucketGradients(self._bucket, flat.numpy(), self.manager.current_step(), index=0)

    def _move(self, gradients: BucketGradients, moves: bool) -> None:
        """Take the outer step with the mean; without one go back to the shared model, and keep what was to be sent."""
        values = torch.from_numpy(gradients.values)
        means = {p.name: values[p.start : p.stop].view(p.shape) for p in self._bucket.parameters}
        if moves:
            change = {name: means[name].to(shared.device, shared.dtype) for name, shared in self.model.shared.items()}
            self.n_skipped += not self.model.move(change)
            for name, x in self.model.buffers.items():
                x.copy_(cast(means[name], x.dtype))
        else:
            self.model.restart()
        if self.apart:
            self.model.go_apart(self.kept.memories.taken(self.model.local), float(self.kept.error_feedback))

    def _bucket_of_model(self) -> Bucket:
        exact = {name: (tuple(x.shape), Raw()) for name, x in self.model.buffers.items()}
        shapes = {name: tuple(x.shape) for name, x in self.model.local.items()}
        coded: dict[str, tuple[tuple[int, ...], Codec]] = {
            **{name: (shape, self.plan.codec_for(name, shape)) for name, shape in shapes.items()},
            **exact,
        }
        sizes = [torch.Size(shape).numel() for shape, _ in coded.values()]
        starts = accumulate(sizes, initial=0)
        return Bucket(
            tuple(
                CodedParameter.of(name, shape, codec, self.kept.error_feedback, start)
                for (name, (shape, codec)), start in zip(coded.items(), starts, strict=False)
            ),
            is_whole=True,
        )

    # --- what a worker that joins takes over ------------------------------------------------------------------------

    def _handed_over(self) -> dict[str, Any]:
        buffers = {name: x.clone() for name, x in self.model.buffers.items()}
        return {**self.model.state_dict(), "buffers": buffers, "spec": str(self.plan)}

    def _take_over(self, state: Mapping[str, Any]) -> None:
        """Begin anew with the others' model; what this worker had still to send is gone."""
        if state["spec"] != str(self.plan):
            raise ValueError(f"the other workers train with spec {state['spec']!r}, this one with {str(self.plan)!r}")
        self.model.load_state_dict(state)
        self.model.restart()
        with torch.no_grad():
            for name, x in self.model.buffers.items():
                x.copy_(state["buffers"][name])
        self.kept.memories.arrays.clear()
        self.n_taken_over += 1
