"""A model of links: bytes become seconds. Transfer is modelled; compute, encoding and decoding are measured.

A round is synchronous: it lasts as long as its slowest client needs to receive, decode, train, encode and send, and then
as long as the server needs to decode and step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perbit.sim.federated.settings import SettingsError

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


def round_seconds(ledger: Iterable[dict[str, Any]], timings: Iterable[dict[str, Any]], link: Link) -> list[float]:
    """How long each round lasts on this link."""
    n_bytes: defaultdict[tuple[int, int, str], int] = defaultdict(int)
    for line in ledger:
        n_bytes[line["round"], line["client"], line["direction"]] += line["n_bytes"]
    seconds = []
    for clock in timings:
        slowest = 0.0
        for client, compute in clock["compute"].items():
            moved = 0.0
            for direction in ("down", "up"):
                sent = n_bytes[clock["round"], int(client), direction]
                moved += link.seconds(sent, int(sent > 0), int(client), direction)
            slowest = max(slowest, compute + clock["encode"][client] + clock["receive"][client] + moved)
        seconds.append(slowest + clock["decode"] + clock["server"])
    return seconds
