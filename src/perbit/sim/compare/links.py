"""A model of links: bytes become seconds. Transfer is modelled; compute, encoding and decoding are measured.

A round is synchronous: it lasts as long as its slowest client needs to receive, decode, train, encode and send, and then
as long as the server needs to decode and step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.sim.federated.settings import SettingsError

F64 = NDArray[np.float64]
Speed = float | tuple[float, ...]


@dataclass(frozen=True)
class Link:
    """Mbit/s up and down, for all clients or for each; `latency_ms` is the way there of every message."""

    name: str
    up: Speed
    down: Speed
    latency_ms: float = 20.0

    def __post_init__(self) -> None:
        for key in ("up", "down"):
            value = getattr(self, key)
            if not all(speed > 0 for speed in (value if isinstance(value, tuple) else (value,))):
                raise SettingsError(f"{key} must be above 0 Mbit/s, not {value}", key)
        if self.latency_ms < 0:
            raise SettingsError(f"latency_ms cannot be negative, and is {self.latency_ms}", "latency_ms")

    def seconds(self, n_bytes: int, n_messages: int, client: int, direction: str) -> float:
        """The modelled time of some messages, one after the other; messages of one batch share the latency.

        >>> Link("dsl", up=1.0, down=10.0, latency_ms=0).seconds(125_000, 1, 0, "up")
        1.0
        """
        speed = self.up if direction == "up" else self.down
        mbit = speed[client] if isinstance(speed, tuple) else speed
        return 8e-6 * n_bytes / mbit + 1e-3 * self.latency_ms * min(1, n_messages)


LINKS = tuple(Link(f"{mbit:g} Mbit/s", float(mbit), float(mbit)) for mbit in (1, 25, 100, 1000))


@dataclass(frozen=True, eq=False)
class Traffic:
    """What a run moved and measured: rounds × clients, and for the server rounds."""

    up: F64  # bytes
    down: F64
    busy: F64  # a client's seconds: decode, train, encode
    server: F64  # its seconds: decode and step

    @classmethod
    def of(cls, ledger: Iterable[dict[str, Any]], timings: Iterable[dict[str, Any]]) -> Traffic:
        """From the lines of a ledger and of the timings that belong to it."""
        clocks = list(timings)
        row = {clock["round"]: number for number, clock in enumerate(clocks)}
        n_clients = 1 + max((int(client) for clock in clocks for client in clock["compute"]), default=-1)
        up, down, busy = (np.zeros((len(clocks), n_clients)) for _ in range(3))
        for line in ledger:
            if line["round"] in row:
                (up if line["direction"] == "up" else down)[row[line["round"]], line["client"]] += line["n_bytes"]
        for number, clock in enumerate(clocks):
            for client, compute in clock["compute"].items():
                busy[number, int(client)] = compute + clock["encode"][client] + clock["receive"][client]
        server = np.array([clock["decode"] + clock["server"] for clock in clocks])
        return cls(up, down, busy, server)

    def seconds(self, link: Link) -> F64:
        """How long each round lasts on this link."""
        if not self.busy.size:
            return self.server
        moved = self.busy.copy()
        for n_bytes, speed in ((self.down, link.down), (self.up, link.up)):
            each = np.asarray(speed[: n_bytes.shape[1]] if isinstance(speed, tuple) else speed)
            moved += 8e-6 * n_bytes / each + 1e-3 * link.latency_ms * (n_bytes > 0)
        slowest: F64 = moved.max(axis=1)
        return slowest + self.server


def round_seconds(ledger: Iterable[dict[str, Any]], timings: Iterable[dict[str, Any]], link: Link) -> list[float]:
    """How long each round lasts on this link."""
    return [float(seconds) for seconds in Traffic.of(ledger, timings).seconds(link)]
