"""What is kept between steps wherever tensors are coded again and again: error memories, the step, the seed, and what was sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from perbit.torch.feedback import Memories, check_decay
from perbit.torch.traffic import Traffic, ratio


class Kept:
    """The part that one's own loop, DDP, FSDP2 and `all_reduce` have in common."""

    def __init__(self, error_feedback: bool | float, seed: int) -> None:
        check_decay(error_feedback)
        self.error_feedback, self.seed, self.step = error_feedback, seed, 0
        self.memories = Memories()
        self.traffic = Traffic()
        self._scaler: Any = None
        self._scale: float | None = None

    @property
    def sent_bytes(self) -> int:
        """Bytes sent so far: frames, lengths and padding."""
        return self.traffic.sent_bytes

    @property
    def dense_bytes(self) -> int:
        """What would have been sent without compression, as float32."""
        return self.traffic.dense_bytes

    @property
    def ratio(self) -> float:
        """How many times less than float32 that is."""
        return ratio(self.dense_bytes, self.sent_bytes)

    @property
    def seconds(self) -> dict[str, float]:
        """Busy time so far: `encode` makes frames, `exchange` sends, receives and adds them; of that, `wait` is spent in the network."""
        return self.traffic.seconds

    def metrics(self) -> dict[str, float]:
        """Numbers for a logger, flat: bytes, ratio and seconds of the step that began last, totals, and the norms of the error memories."""
        norms = self.memories.norms()
        whole = float(sum(norm**2 for norm in norms.values()) ** 0.5)
        each = {f"memory_norms/{name}": norm for name, norm in norms.items()}
        return {"step": self.step, **self.traffic.metrics(), "memory_norm": whole, **each}

    def rescale(self, factor: float) -> None:
        """Tell the memories that values come in another unit from now on: with a loss scaler, new scale over old scale."""
        self.memories.scale(factor)

    def watch(self, scaler: Any) -> None:
        """Rescale the memories whenever this loss scaler (`torch.amp.GradScaler`, or anything with `get_scale()`) has changed its scale."""
        self._scaler = scaler

    def follow_scale(self) -> None:
        """Called where a step begins, before anything is coded."""
        if self._scaler is None:
            return
        scale = float(self._scaler.get_scale())
        if self._scale is not None and scale != self._scale:
            self.rescale(scale / self._scale)
        self._scale = scale

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as numbers and tensors."""
        memory = {name: torch.from_numpy(array) for name, array in self.memories.copies().items()}
        scale = {} if self._scale is None else {"scale": self._scale}
        recall = {name: torch.from_numpy(found) for name, found in self.memories.recalled().items()}
        return {"step": self.step, "seed": self.seed, "memory": memory, "recall": recall, **scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self.step, self.seed = int(state["step"]), int(state["seed"])
        self._scale = state.get("scale")
        self.memories.load(state["memory"], state.get("recall", {}))  # checkpoints of before have none


class KeptByRank(Kept):
    """The same on a rank of a process group, whose memories are its own: checkpoints are one for each rank."""

    def __init__(self, error_feedback: bool | float, seed: int, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(error_feedback, seed)
        self._process_group = process_group

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as numbers and tensors. Each rank has its own memories: save one for every rank."""
        return {**super().state_dict(), **self._place()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()` of the same rank."""
        place = self._place()
        if any(state[key] != place[key] for key in place):
            raise ValueError(
                f"this is the state of rank {state['rank']} of {state['world']}, loaded by rank {place['rank']} of {place['world']}; "
                "error memories belong to a rank: load its own, or none to start with empty ones"
            )
        super().load_state_dict(state)

    def _place(self) -> dict[str, int]:
        return {"rank": dist.get_rank(self._process_group), "world": dist.get_world_size(self._process_group)}
