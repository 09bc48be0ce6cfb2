"""Local steps with an outer optimizer: every worker trains by itself, and now and then all of them move one shared model.

A round of H local steps takes a worker from the shared model θ to its own model w. It sends the pseudo-gradient θ - w, coded, with error
feedback. The outer optimizer takes a step with the mean of all pseudo-gradients, and every worker goes on from the new θ. All workers
compute the same θ, bit for bit, so nobody sends it.

The model may be cut into fragments, which take turns within a round, and what they send may travel while training goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from perbit.outer.model import MakeOptimizer, Named, SharedModel, check_apart, fragments_of
from perbit.plan.plan import PlanLike, as_plan
from perbit.torch.averaging import Memory, all_reduce
from perbit.torch.collective.bytegroup import own_group


@dataclass
class Flight:
    """A fragment's pseudo-gradients under way, and in how many local steps they are to arrive; `travel` replaces them by their mean."""

    change: Named
    buffers: Named
    left: int
    travel: Future[None] | None = None

    def arrived(self) -> Flight:
        if self.travel is not None:
            self.travel.result()
        return self


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
        fragments: into how many parts the model is cut. Each is averaged once in a round, at times spread evenly over it.
        delay: for how many local steps training goes on while a fragment travels; 0: it waits. Less than every / fragments.
        keep: where there is a delay, the share of its own values that a worker keeps when a fragment arrives. They have seen the local
            steps since the fragment left, the shared ones have not.
        apart: where what could not be sent waits. False: in an error memory, beside a model that goes on from the shared one. True: in the
            worker's own model, which goes on from there, so that its gradients know what is still to be sent. No delay then.
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
        fragments: int = 1,
        delay: int = 0,
        keep: float = 0.0,
        apart: bool = False,
    ) -> None:
        _check_times(every, fragments, delay, keep)
        check_apart(apart, error_feedback)
        if apart and delay:
            raise ValueError(
                "apart=True needs delay=0: what could not be sent is known only when a fragment has arrived"
            )
        self.plan, self.every, self.delay, self.keep, self.apart = as_plan(spec), every, delay, keep, apart
        self.model = SharedModel(model, outer)
        self.fragments = fragments_of({name: x.numel() for name, x in self.model.local.items()}, fragments)
        _take_from_first({**self.model.local, **self.model.buffers}, group)
        self.model.begin()
        # What travels in the background must not come between the collectives of the training loop.
        self.memory = Memory(own_group(group) if delay else group, error_feedback=error_feedback, seed=seed)
        self._thread: ThreadPoolExecutor | None = None
        self._flight: Flight | None = None
        self.n_local = 0  # steps since the last round
        self.n_skipped = 0  # rounds, or fragments of one, in which a worker had no finite model
        self.stalled_seconds = 0.0

    @property
    def shared(self) -> Mapping[str, torch.nn.Parameter]:
        """The shared model, in float32."""
        return self.model.shared

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """That of the shared model."""
        return self.model.optimizer

    def shared_values(self) -> AbstractContextManager[None]:
        """A block in which the model holds the shared parameters: to test or to save what all workers agree on."""
        return self.model.lent()

    def step(self) -> bool:
        """Count a local step; True if it was the last of a round. Without a delay the model is then the shared one, or `apart` from it."""
        if self._flight is not None:
            self._flight.left -= 1
            if self._flight.left == 0:
                self._land(self.keep)
        self.n_local += 1
        for number, names in enumerate(self.fragments, 1):
            if self.n_local == self.every * number // len(self.fragments):
                self._send(names, is_last=number == len(self.fragments))
        if self.n_local < self.every:
            return False
        self.n_local = 0
        return True

    def synchronize(self) -> None:
        """End the round now, as all ranks must do together: average, take an outer step, go on from the shared model.

        If the model of any worker is not finite, all of them go back to the shared model, and the round is skipped.
        """
        if self._flight is not None:
            self._land(self.keep)
        with self._stalled():
            change, buffers = self.model.change(self.model.local), dict(self.model.buffers)
            self._travel(change, buffers)
        self._take(change, buffers, 0.0)
        self.n_local = 0

    def metrics(self) -> dict[str, float]:
        """Those of `perbit.torch.Memory`, where a step is an exchange; what was skipped; local steps since the last round; and
        `stalled_seconds`, for how long training stood still for exchanges so far."""
        own = {"skipped": self.n_skipped, "local_steps": self.n_local, "stalled_seconds": self.stalled_seconds}
        return {**self.memory.metrics(), **own}

    # --- exchanges ---------------------------------------------------------------------------------------------------

    def _send(self, names: list[str], is_last: bool) -> None:
        """Start the exchange of a fragment; without a delay, end it too. Buffers go with the last one."""
        buffers = {name: x.clone() for name, x in self.model.buffers.items()} if is_last else {}
        self._flight = Flight(self.model.change(names), buffers, self.delay)
        if self.delay:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="perbit-outer")
            self._flight.travel = self._thread.submit(self._travel, self._flight.change, buffers)
            return
        with self._stalled():
            self._travel(self._flight.change, buffers)
        self._land(0.0)

    @torch.no_grad()
    def _travel(self, change: Named, buffers: Named) -> None:
        all_reduce(change, self.plan, memory=self.memory)
        if buffers:
            all_reduce(buffers, "raw", self.memory._process_group)

    def _land(self, keep: float) -> None:
        """Wait for the fragment that is under way, and go on from it."""
        assert self._flight is not None
        with self._stalled():
            arrived = self._flight.arrived()
        self._flight = None
        self._take(arrived.change, arrived.buffers, keep)

    @torch.no_grad()
    def _take(self, mean: Named, buffers: Named, keep: float) -> None:
        self.n_skipped += not self.model.move(mean, keep)
        if self.apart:
            self.model.go_apart(self.memory.memories.taken(mean), float(self.memory.error_feedback))
        for name, x in buffers.items():
            self.model.buffers[name].copy_(x)

    @contextmanager
    def _stalled(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.stalled_seconds += time.perf_counter() - begin

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the model and the local optimizer, which the user saves. Each rank has its own: save all three for every rank.

        It waits for a fragment that is under way; what has arrived is saved too, and takes its place at the same step as without saving.
        """
        flight = self._flight and self._flight.arrived()
        return {
            **self._settings(),
            **self.model.state_dict(),
            "memory": self.memory.state_dict(),
            "flight": flight
            and {"change": _copies(flight.change), "buffers": _copies(flight.buffers), "left": flight.left},
            "n_local": self.n_local,
            "n_skipped": self.n_skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()` of the same rank, with the same model, spec, length of a round and fragments."""
        state = {"apart": False, **state}  # which older ones do not say
        for key, mine in self._settings().items():
            if state[key] != mine:
                raise ValueError(f"the checkpoint was made with {key} {state[key]!r}, this run has {mine!r}")
        self.memory.load_state_dict(state["memory"])
        self.model.load_state_dict(state)
        flight = state["flight"]
        self._flight = flight and Flight(_copies(flight["change"]), _copies(flight["buffers"]), int(flight["left"]))
        self.n_local, self.n_skipped = int(state["n_local"]), int(state["n_skipped"])

    def _settings(self) -> dict[str, Any]:
        times = {"every": self.every, "fragments": len(self.fragments), "delay": self.delay, "keep": self.keep}
        return {"spec": str(self.plan), **times, "error_feedback": self.memory.error_feedback, "apart": self.apart}


def _check_times(every: int, fragments: int, delay: int, keep: float) -> None:
    if every < 1:
        raise ValueError(f"every is a number of local steps, at least 1, got {every}")
    if not 1 <= fragments <= every:
        raise ValueError(
            f"fragments take turns within the {every} steps of a round: give 1 to {every}, got {fragments}"
        )
    if not 0 <= delay < max(1, every // fragments):
        raise ValueError(
            f"delay must be below {every // fragments}, the steps between two fragments, so that one arrives before the next leaves; "
            f"got {delay}"
        )
    if not 0 <= keep < 1 or (keep and not delay):
        raise ValueError(f"keep is a share from 0 to below 1, and 0 where there is no delay, got {keep}")


def _copies(tensors: Mapping[str, torch.Tensor]) -> Named:
    return {name: x.clone() for name, x in tensors.items()}


def _take_from_first(tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Give all ranks the values of the first one, as bytes: gloo does not know every dtype."""
    first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
    for x in tensors.values():
        if x.numel():
            value = x.detach().contiguous().flatten()
            dist.broadcast(value.view(torch.uint8), first, group)
            x.detach().copy_(value.view(x.shape))
