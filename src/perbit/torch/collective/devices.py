"""Gradients wherever they are computed, in memory that coders can read: copied out, and back again when they are averaged.

A `Device` says how to copy without stopping the work that is queued for it. A `Staging` says in which order: it knows nothing of streams,
so what only a real accelerator can show is in `Accelerator` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import torch

from perbit.coding.afar import works_afar
from perbit.coding.codec import Codec, as_pipeline
from perbit.kernels.api import F32
from perbit.torch.device import serves, vector_of

if TYPE_CHECKING:
    from perbit.torch.vectors import Vector

_SLOTS = 3  # a bucket is copied while another one is coded and a third one travels


class Event(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Block this thread until the device has come there."""
        ...


class Device(ABC):
    """Copies between a device and the memory of the host, behind the back of whoever computes there."""

    @abstractmethod
    def computed(self, buffer: torch.Tensor) -> Event:
        """Reached once all work is done that this thread has queued, which computes what is in the buffer."""

    @abstractmethod
    def host_memory(self, n: int) -> torch.Tensor:
        """Room for n float32 values, from and to which the device can copy by itself."""

    @abstractmethod
    def copy_out(self, buffer: torch.Tensor, host: torch.Tensor, after: Event) -> Event:
        """Start a copy that begins when `after` is reached; the event says that it is complete."""

    @abstractmethod
    def copy_back(self, host: torch.Tensor, buffer: torch.Tensor) -> Event:
        """Start a copy; the event says that it is complete."""

    @abstractmethod
    def work_apart(self) -> None:
        """From now on, what this thread queues does not wait for what others queue."""

    @abstractmethod
    def worked(self) -> Event:
        """Reached once all work is done that threads which work apart have queued."""


class Accelerator(Device):
    """A device of torch with streams: CUDA, ROCm (which torch calls cuda), XPU.

    Copies have a stream of their own, and so have the kernels of coders. Host memory is pinned, otherwise copies would wait for each other.
    """

    def __init__(self, device: torch.device, module: Any = None) -> None:
        self.device = device
        self.module = module or getattr(torch, device.type)  # torch.cuda, torch.xpu
        self.stream = self.module.Stream(device)
        self.working = self.module.Stream(device)

    def computed(self, buffer: torch.Tensor) -> Event:
        return self._event(self.module.current_stream(self.device))

    def host_memory(self, n: int) -> torch.Tensor:
        return torch.empty(n, pin_memory=True)

    def copy_out(self, buffer: torch.Tensor, host: torch.Tensor, after: Event) -> Event:
        assert isinstance(after, _StreamEvent)
        with self.module.stream(self.stream):
            self.stream.wait_event(after.event)
            host.copy_(buffer, non_blocking=True)
            return self._event(self.stream)

    def copy_back(self, host: torch.Tensor, buffer: torch.Tensor) -> Event:
        with self.module.stream(self.stream):
            buffer.copy_(host, non_blocking=True)
            return self._event(self.stream)

    def work_apart(self) -> None:
        self.module.set_device(self.device)
        self.module.set_stream(self.working)

    def worked(self) -> Event:
        return self._event(self.working)

    def _event(self, stream: Any) -> Event:
        event = self.module.Event()
        event.record(stream)
        return _StreamEvent(event)


@dataclass(frozen=True)
class _StreamEvent:
    event: Any

    def wait(self) -> None:
        self.event.synchronize()


class Staging(ABC):
    """Buckets on their way to the coders and back, in the order in which they began."""

    @abstractmethod
    def begin(self, buffer: torch.Tensor) -> Any:
        """A ticket for a bucket whose gradients are queued; does not wait for them."""

    @abstractmethod
    def fetch(self, ticket: Any) -> Vector:
        """Its values, complete. Another thread than that of `begin` may wait here."""

    @abstractmethod
    @contextmanager
    def holding(self, ticket: Any) -> Iterator[None]:
        """While this is open, the values are there, and may be written over."""

    @abstractmethod
    @contextmanager
    def returning(self, ticket: Any) -> Iterator[None]:
        """The same; if nothing fails, what the values have become is in the bucket afterwards."""

    @abstractmethod
    def place(self, values: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copy values, which lie where those fetched do, into a buffer that was there when the ticket now held began; returns when they are
        there."""


class InPlace(Staging):
    """On the CPU coders read gradients where they are; floats other than float32 are copied."""

    def begin(self, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return buffer, buffer.to(torch.float32)  # the buffer itself for float32

    def fetch(self, ticket: tuple[torch.Tensor, torch.Tensor]) -> F32:
        values: F32 = ticket[1].numpy()
        return values

    @contextmanager
    def holding(self, ticket: tuple[torch.Tensor, torch.Tensor]) -> Iterator[None]:
        yield

    @contextmanager
    def returning(self, ticket: tuple[torch.Tensor, torch.Tensor]) -> Iterator[None]:
        yield
        buffer, values = ticket
        if values is not buffer:
            self.place(values, buffer)

    def place(self, values: torch.Tensor, buffer: torch.Tensor) -> None:
        buffer.copy_(values.view_as(buffer))


class Slot:
    """Host memory for one bucket at a time; it grows to the largest."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = device.host_memory(0)

    def room(self, n: int) -> torch.Tensor:
        if self.memory.numel() < n:
            self.memory = self.device.host_memory(n)
        return self.memory[:n]


@dataclass(frozen=True)
class Ticket:
    """A bucket that is copied out: the copy gives its slot, the host memory, and the event of its end."""

    buffer: torch.Tensor
    copying: Future[tuple[Slot, torch.Tensor, Event]]


class Copied(Staging):
    """Through a few slots of host memory. A thread of its own waits for a free slot, so that backward never does."""

    def __init__(self, device: Device, slots: int = _SLOTS) -> None:
        self.device = device
        self.free: SimpleQueue[Slot] = SimpleQueue()
        for _ in range(slots):
            self.free.put(Slot(device))
        self.copier = ThreadPoolExecutor(1, thread_name_prefix="perbit-copy")

    def begin(self, buffer: torch.Tensor) -> Ticket:
        computed = self.device.computed(buffer)
        return Ticket(buffer, self.copier.submit(self._copy_out, buffer, computed))

    def fetch(self, ticket: Ticket) -> F32:
        _, host, copied = ticket.copying.result()
        copied.wait()
        values: F32 = host.numpy()
        return values

    @contextmanager
    def holding(self, ticket: Ticket) -> Iterator[None]:
        slot, _, copied = ticket.copying.result()
        try:
            yield
        finally:
            copied.wait()
            self.free.put(slot)

    @contextmanager
    def returning(self, ticket: Ticket) -> Iterator[None]:
        with self.holding(ticket):
            yield
            self.place(ticket.copying.result()[1], ticket.buffer)

    def place(self, values: torch.Tensor, buffer: torch.Tensor) -> None:
        self.device.copy_back(values.view_as(buffer), buffer).wait()

    def _copy_out(self, buffer: torch.Tensor, computed: Event) -> tuple[Slot, torch.Tensor, Event]:
        slot = self.free.get()
        try:
            host = slot.room(buffer.numel())
            return slot, host, self.device.copy_out(buffer, host, computed)
        except BaseException:
            self.free.put(slot)
            raise


class Resident(Staging):
    """Gradients stay on their device, whose kernels answer what coders ask. Threads that code queue their work apart from backward's."""

    def __init__(self, device: Device | None) -> None:
        self.device = device  # None: one that does everything at once

    def begin(self, buffer: torch.Tensor) -> tuple[torch.Tensor, Event | None, list[torch.Tensor]]:
        return buffer, self.device.computed(buffer) if self.device else None, []

    def fetch(self, ticket: tuple[torch.Tensor, Event | None, list[torch.Tensor]]) -> Vector:
        buffer, computed, values = ticket
        if self.device and computed:
            computed.wait()
            self.device.work_apart()
        values.append(buffer.to(torch.float32).contiguous())  # the buffer itself for float32
        return vector_of(values[0])

    @contextmanager
    def holding(self, ticket: tuple[torch.Tensor, Event | None, list[torch.Tensor]]) -> Iterator[None]:
        if self.device:
            self.device.work_apart()
        yield
        self._finish()

    @contextmanager
    def returning(self, ticket: tuple[torch.Tensor, Event | None, list[torch.Tensor]]) -> Iterator[None]:
        with self.holding(ticket):
            yield
            buffer, _, values = ticket
            if values[0] is not buffer:
                buffer.copy_(values[0])

    def place(self, values: torch.Tensor, buffer: torch.Tensor) -> None:
        buffer.copy_(values.view_as(buffer))
        self._finish()

    def _finish(self) -> None:
        if self.device:
            self.device.worked().wait()


def staging_for(device: torch.device, codec: Codec | None = None) -> Staging:
    """How gradients on this device reach the coders; `codec` is that of most of them."""
    own = None if device.type == "cpu" else Accelerator(device)
    if codec is not None and works_afar(as_pipeline(codec)) and serves(device):
        return Resident(own)
    return InPlace() if own is None else Copied(own)
