"""What the two filters of a side share: its session, and what it sent. Nothing here knows how NVFlare wraps models."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from perbit.engines.nvflare.models import plain_bytes, subtracted
from perbit.errors import DecodeError
from perbit.session import ClientSession, Model, ResyncNeeded, ServerSession, Traffic
from perbit.session.model import Tensors

LOG = logging.getLogger("perbit.nvflare")


@dataclass
class ServerSide:
    """The server's session, shared by its filters. NVFlare runs them for several clients at once, hence the lock."""

    session: ServerSession
    traffic: Traffic = field(default_factory=Traffic)
    _sent: dict[str, Model] = field(default_factory=dict)
    _newest: Model | None = None
    _lock: Lock = field(default_factory=Lock)

    def send(self, client: str, tensors: Mapping[str, Any]) -> bytes:
        """The frame of one client. The filter runs once for each, with the same model: what is the same is coded once."""
        with self._lock:
            model = self.session.model(tensors)
            if self._newest is None or not self._newest.same_as(model):
                self._newest = model
            frame = self.session.send(client, self._newest)
            self._sent[client] = self._newest
            self.traffic.down_bytes += len(frame)
            self.traffic.plain_down_bytes += plain_bytes(tensors)
        return frame

    def receive(self, client: str, answer: bytes, is_diff: bool) -> Tensors | None:
        """The client's result, or None if it only acknowledged, or if its answer is of no use."""
        with self._lock:
            self.traffic.up_bytes += len(answer)
            try:
                tensors = self.session.receive(client, answer)
            except DecodeError as error:
                self.traffic.n_dropped += 1
                LOG.warning("the result of client %s is dropped, it gets a full frame next: %s", client, error)
                return None
            if tensors is None:
                return None
            self.traffic.plain_up_bytes += plain_bytes(tensors)
            base = self._sent[client]
        return subtracted(tensors, base.tensors()) if is_diff else tensors

    def count_plain(self, down_bytes: int = 0, up_bytes: int = 0) -> None:
        """Tensors that went as they are."""
        with self._lock:
            self.traffic.down_bytes += down_bytes
            self.traffic.plain_down_bytes += down_bytes
            self.traffic.up_bytes += up_bytes
            self.traffic.plain_up_bytes += up_bytes

    def resync(self, client: str, question: bytes) -> bytes:
        """A full frame for a client that cannot use the one it got, while its task goes on."""
        with self._lock:
            self.traffic.up_bytes += len(question)
            try:
                self.session.receive(client, question)
            except ResyncNeeded:
                frame = self.session.resync(client)
                self.traffic.n_resyncs += 1
                self.traffic.down_bytes += len(frame)
                return frame
        raise DecodeError(f"client {client} asks for no resync")


@dataclass
class ClientSide:
    """The client's session and its task."""

    session: ClientSession
    received: Tensors | None = None  # the model of the task under way, if it came as a frame
