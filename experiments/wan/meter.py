"""How long links are busy, and with how many bytes: counters of the bridge's ports, read twenty times a second."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

PERIOD = 0.05  # seconds between two looks
BUSY = 0.1  # a link that carries this share of what it can is busy: above heartbeats and polls, below any model
_CLONE_NEWNET = 0x40000000


class Reading(NamedTuple):
    """Bytes since the link was made, as the client sees it."""

    at: float
    sent: int
    received: int


class Carried(NamedTuple):
    """What one client's link did between two moments."""

    busy_seconds: float
    sent: int
    received: int


class Meter:
    """`with Meter(namespace_of_the_bridge, clients, mbit) as meter:` ... `meter.between(begin, end, client)`."""

    def __init__(self, namespace: str, clients: int, mbit: float) -> None:
        self.namespace, self.mbit = namespace, mbit
        self.readings: list[list[Reading]] = [[] for _ in range(clients)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, begin: float, end: float, client: int) -> Carried:
        """Both directions count: a link that only sends and one that only receives are busy alike."""
        within = [reading for reading in self.readings[client] if begin <= reading.at <= end]
        busy = 0.0
        for before, after in pairwise(within):
            seconds = after.at - before.at
            moved = max(after.sent - before.sent, after.received - before.received)
            busy += seconds if moved > BUSY * seconds * self.mbit * 1e6 / 8 else 0
        if not within:
            raise RuntimeError(f"the meter read nothing of client {client} between {begin} and {end}")
        return Carried(busy, within[-1].sent - within[0].sent, within[-1].received - within[0].received)

    def _watch(self) -> None:
        """This thread alone moves into the namespace; the process stays where it is."""
        handle = os.open(f"/var/run/netns/{self.namespace}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {self.namespace}")
        os.close(handle)
        while not self._stop.wait(PERIOD):
            self._look()

    def _look(self) -> None:
        for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
            name, counters = line.split(":")
            if name.strip().startswith("client"):
                fields = counters.split()  # what comes into the bridge's port is what the client sent
                client = int(name.strip().removeprefix("client"))
                self.readings[client].append(Reading(time.time(), int(fields[0]), int(fields[8])))
