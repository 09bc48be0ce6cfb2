"""The server's process: averages what comes, and is killed at any moment; its folder is all that stays."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np

import perbit
from perbit.protocols import presets
from perbit.session import ResyncNeeded, ServerSession, StaleAnswer, TooManyResyncs
from perbit.session.envelope import Kind, opened
from soaking.counters import Counters
from soaking.wire import ANSWER, DIGEST, GET, GoneError, hear, say

SHAPES = {"w": (64, 48), "b": (48,)}


def first_model() -> dict[str, Any]:
    return {**{name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}, "rounds": np.array(0, np.int64)}


def reopened(protocol: str, folder: Path) -> ServerSession:
    """The session as it was when its process was killed; without a model only the first time."""
    return ServerSession(presets.protocol_of(protocol), seed=1, folder=folder / "server")


class Server:
    def __init__(self, protocol: str, folder: Path, quorum: int) -> None:
        self.quorum, self.folder = quorum, folder
        self.counters = Counters(folder / "server.counters")
        self.counters.add("started")
        self.session = reopened(protocol, folder)
        if not self.session.has_model:
            self.counters.add("began_anew")
            self.session.publish(first_model())
        self.models: dict[str, dict[str, Any]] = {}

    def answer(self, what: int, who: str, body: bytes) -> bytes:
        if what == GET:
            return self._counted(who, self.session.send(who))
        if what == DIGEST:
            return self.session.digest(who) or b""
        if what != ANSWER:
            return b""
        self._known(who).unlink(missing_ok=True)
        said = self._receive(who, body)
        if self.session.digest(who) is not None:
            self._known(who).touch()
        return said

    def _counted(self, who: str, frame: bytes) -> bytes:
        self.counters.add("sent")
        if opened(frame).kind == Kind.FULL:
            self.counters.add("full" if who.startswith("c") else "full_to_hostile")
            self.counters.add("needless", self._known(who).exists())
        return frame

    def _known(self, who: str) -> Path:
        """A file that is there only while this client needs no full model: it was heard of, and not out of step."""
        return self.folder / f"known-{who}"

    def _receive(self, who: str, body: bytes) -> bytes:
        try:
            tensors = self.session.receive(who, body)
        except ResyncNeeded:
            return self._resync(who)
        except StaleAnswer:
            self.counters.add("stale")
            return b""
        except perbit.DecodeError:
            self.counters.add("refused")
            return b""
        self.counters.add("received")
        if tensors is not None:
            self.models[who] = tensors
            if len(self.models) >= self.quorum:
                self._next_round()
        return b"taken"

    def _resync(self, who: str) -> bytes:
        try:
            frame = self.session.resync(who)
        except TooManyResyncs:
            self.counters.add("refused")
            return b""
        self.counters.add("resyncs", who.startswith("c"))
        return self._counted(who, frame)

    def _next_round(self) -> None:
        models, self.models = list(self.models.values()), {}
        mean = {
            name: np.mean([model[name] for model in models], axis=0, dtype=np.float64).astype(np.float32)
            for name in SHAPES
        }
        self.session.publish({**mean, "rounds": self.session.tensors["rounds"] + 1})
        self.counters.add("rounds")


def run(protocol: str, folder: Path, quorum: int) -> None:
    logging.disable(logging.CRITICAL)
    server, address = Server(protocol, folder, quorum), folder / "line"
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen(64)
        while True:
            line, _ = listener.accept()
            with line:
                line.settimeout(10)
                try:
                    say(line, server.answer(*hear(line)))
                except (OSError, GoneError):
                    continue  # a client was killed
                except BaseException as error:
                    server.counters.add("unexpected")
                    with (folder / "unexpected.log").open("a") as log:
                        log.write(f"server {os.getpid()}: {error!r}\n")
                    raise
