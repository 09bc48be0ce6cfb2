"""A device that lies in ordinary memory and does everything as late, or as early, as its queues and events allow.

What is not complete holds NaN. So whoever reads a buffer before its event, or copies before gradients are computed, gets NaN.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from perbit.torch.collective.devices import Copied, Device, Event, Ticket


@dataclass(eq=False)
class Work:
    """A piece of work in a queue; it is its own event."""

    device: FakeDevice
    action: Callable[[], object]
    before: Sequence[Work]  # the one before it in its queue, and what it waits for
    is_done: bool = field(default=False)

    def wait(self) -> None:
        with self.device.lock:
            for earlier in self.before:
                earlier.wait()
            if not self.is_done:
                self.is_done = True
                self.action()


class FakeDevice(Device):
    """Work is done when somebody waits for it; with `is_early`, copies are done at once if nothing that they wait for is open."""

    def __init__(self, is_early: bool) -> None:
        self.is_early = is_early
        self.lock = threading.RLock()
        self.queues: dict[str, Work] = {}

    def computed(self, buffer: torch.Tensor) -> Event:
        values = buffer.clone()
        buffer.fill_(torch.nan)
        return self._queue("compute", lambda: buffer.copy_(values))

    def host_memory(self, n: int) -> torch.Tensor:
        return torch.full((n,), torch.nan)

    def copy_out(self, buffer: torch.Tensor, host: torch.Tensor, after: Event) -> Event:
        assert isinstance(after, Work)
        host.fill_(torch.nan)
        return self._copy(lambda: host.copy_(buffer), after)

    def copy_back(self, host: torch.Tensor, buffer: torch.Tensor) -> Event:
        buffer.fill_(torch.nan)
        return self._copy(lambda: buffer.copy_(host))

    def work_apart(self) -> None:
        pass  # what is done at once waits for nobody

    def worked(self) -> Event:
        return Work(self, lambda: None, [], is_done=True)

    def _copy(self, action: Callable[[], object], *after: Work) -> Work:
        work = self._queue("copy", action, *after)
        if self.is_early and all(earlier.is_done for earlier in work.before):
            work.wait()
        return work

    def _queue(self, name: str, action: Callable[[], object], *after: Work) -> Work:
        with self.lock:
            last = [self.queues[name]] if name in self.queues else []
            self.queues[name] = Work(self, action, [*last, *after])
            return self.queues[name]


# --- races that are there on purpose ---------------------------------------------------------------------------------


class Nothing:
    """An event that nobody waits for."""

    def wait(self) -> None:
        pass


class CopiesTooEarly(Copied):
    """Does not wait until the gradients are computed."""

    def begin(self, buffer: torch.Tensor) -> Ticket:
        self.device.computed(buffer)
        done = Work(self.device, lambda: None, [], is_done=True)
        return Ticket(buffer, self.copier.submit(self._copy_out, buffer, done))


class ReadsTooEarly(Copied):
    """Does not wait until the copy is complete."""

    def _copy_out(self, buffer, computed):
        slot, host, _ = super()._copy_out(buffer, computed)
        return slot, host, Nothing()


class ReturnsTooEarly(Copied):
    """Says that the mean is in the bucket when it is still on its way."""

    def __init__(self, device: FakeDevice, slots: int = 3) -> None:
        back = device.copy_back
        device.copy_back = lambda host, buffer: (back(host, buffer), Nothing())[1]  # type: ignore[method-assign]
        super().__init__(device, slots)


RACES = [CopiesTooEarly, ReadsTooEarly, ReturnsTooEarly]
