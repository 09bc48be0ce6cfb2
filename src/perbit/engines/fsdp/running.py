"""The threads, groups and staging of a state in use."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist

from perbit.coding.codec import Codec
from perbit.torch.collective.bytegroup import ByteGroup, own_group
from perbit.torch.collective.devices import Staging, staging_for
from perbit.torch.collective.pipeline import Pipeline
from perbit.torch.traffic import Traffic


class Running:
    """Groups are made when they are first used, by all of their ranks in the same order."""

    def __init__(self) -> None:
        self.pipeline = Pipeline()
        self._own: dict[dist.ProcessGroup, dist.ProcessGroup] = {}
        self._groups: dict[tuple[dist.ProcessGroup, int], ByteGroup] = {}
        self._staging: dict[tuple[torch.device, Codec | None], Staging] = {}

    def group(self, group: dist.ProcessGroup, traffic: Traffic) -> ByteGroup:
        """Coded bytes between the ranks of this group, counted there."""
        key = (group, id(traffic))
        if key not in self._groups:
            if group not in self._own:
                self._own[group] = own_group(group)
            self._groups[key] = ByteGroup(self._own[group], traffic)
        return self._groups[key]

    def staging(self, device: torch.device, codec: Codec | None = None) -> Staging:
        """The way to coders; with the codec of most values, they stay on the device if it can code them."""
        key = (device, codec)
        if key not in self._staging:
            self._staging[key] = staging_for(device, codec)
        return self._staging[key]


class Awaited(dist.Work):
    """What FSDP waits for before it uses parameters."""

    def __init__(self, pending: Future[None]) -> None:
        super().__init__()
        self.pending = pending

    def wait(self, timeout: Any = None) -> bool:
        self.pending.result()
        return True

    def is_completed(self) -> bool:
        return self.pending.done()


def wait_after_backward(pending: Future[None]) -> None:
    """Let backward go on; when all of it is done, it waits for this and raises its error.

    The engine's list of callbacks is the way of DDP and of FSDP itself, though torch has no documented name for it.
    """
    torch.autograd.Variable._execution_engine.queue_callback(pending.result)
