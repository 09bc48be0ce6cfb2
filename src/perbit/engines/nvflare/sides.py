"""What the two filters of a side share: its session, and what it sent. Nothing here knows how NVFlare wraps models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from perbit.engines.nvflare.models import plain_bytes, subtracted
from perbit.errors import BudgetError, DecodeError, EncodeError
from perbit.printing import logger
from perbit.session import ClientSession, Model, ServerSession, StaleAnswer, TooLarge, Traffic
from perbit.session.clientfiles import ClientFiles
from perbit.session.model import Tensors

LOG = logger("perbit.nvflare")


@dataclass
class ServerSide:
    """The server's session, shared by its filters. NVFlare runs them for several clients at once, hence the lock."""

    session: ServerSession
    traffic: Traffic = field(default_factory=Traffic)
    _sent: dict[str, Model] = field(default_factory=dict)  # to clients that have not answered yet
    _latest: list[Model] = field(default_factory=list)  # two models at the most: the session takes answers to no others
    _lock: Lock = field(default_factory=Lock)

    def send(self, client: str, tensors: Mapping[str, Any]) -> bytes:
        """The frame of one client. The filter runs once for each, with the same model: what is the same is coded once."""
        with self._lock:
            model = self.session.model(tensors)
            try:
                frame = self.session.send(client, model)
            except (EncodeError, BudgetError):
                self._give_up(client)
                raise
            self._remember(client, model)
            self.traffic.down_bytes += len(frame)
            self.traffic.plain_down_bytes += model.n_bytes
        return frame

    def receive(self, client: str, answer: Any, is_diff: bool) -> Tensors | None:
        """The client's result; None if it only acknowledged, nothing if its answer is of no use."""
        with self._lock:
            self.traffic.up_bytes += len(answer) if isinstance(answer, bytes) else 0
            if (
                client not in self._sent
            ):  # asked by a process before this one: a difference from what, is not known here
                self.session.forget_pending(client)
            try:
                tensors = self.session.receive(client, answer)
            except StaleAnswer as error:
                self.traffic.n_stale += 1
                LOG.warning("the result of client %s is left out, it keeps its place: %s", client, error)
                return {}
            except DecodeError as error:
                self._drop(client, error)
                return {}
            sent = self._sent.pop(client)
            if tensors is None:
                return None
            self.traffic.plain_up_bytes += plain_bytes(tensors)
        return subtracted(tensors, sent.tensors(tensors)) if is_diff else tensors

    def drop(self, client: str, error: DecodeError) -> None:
        """An answer is of no use: the client stays where it was."""
        with self._lock:
            self._drop(client, error)

    def give_up(self, client: str) -> None:
        """No answer will come to what was sent: the client stays where it was."""
        with self._lock:
            self._give_up(client)

    def resync(self, client: str, question: bytes) -> bytes:
        """A full frame for a client that cannot use the one it got, whichever that was, while its task goes on."""
        with self._lock:
            self.session.check_question(client, question)
            frame = self.session.resync(client)
            self._sent[client] = self.session.present  # which may be newer than the model of the task
            self.traffic.n_resyncs += 1
            self.traffic.up_bytes += len(question)
            self.traffic.down_bytes += len(frame)
        return frame

    def count_plain(self, down_bytes: int = 0, up_bytes: int = 0) -> None:
        """Tensors that went as they are."""
        with self._lock:
            self.traffic.down_bytes += down_bytes
            self.traffic.plain_down_bytes += down_bytes
            self.traffic.up_bytes += up_bytes
            self.traffic.plain_up_bytes += up_bytes

    def summary(self) -> dict[str, float]:
        """The traffic so far."""
        with self._lock:
            return self.traffic.summary()

    def _remember(self, client: str, model: Model) -> None:
        if model not in self._latest[-1:]:
            self._latest = [*self._latest[-1:], model]
            self._sent = {name: sent for name, sent in self._sent.items() if sent in self._latest}
        self._sent[client] = model

    def _drop(self, client: str, error: DecodeError) -> None:
        self._give_up(client)
        self.traffic.n_dropped += 1
        self.traffic.n_too_large += isinstance(error, TooLarge)
        LOG.warning("the result of client %s is dropped: %s", client, error)

    def _give_up(self, client: str) -> None:
        self.session.forget_pending(client)
        self._sent.pop(client, None)


class ClientSide:
    """The client's session, its files and its task."""

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        self.session = ClientSession(folder, key=key)
        self.received: Tensors | None = None  # the model of the task under way, if it came as a frame
        self._folder = folder

    def end(self) -> None:
        """The run is over, and its state of no use any more; files of others stay."""
        ClientFiles(self._folder).remove()
