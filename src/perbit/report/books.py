"""What the ledger of a run says, added up: bytes by round and client, by tensor, and the measured times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perbit.sim.compare.links import Traffic
from perbit.sim.federated import ledger

WAYS = ("up", "down")
REST = "headers, checksums, exact counters"  # of a message: all that is no tensor's


@dataclass(frozen=True, eq=False)
class RunBook:
    """One run. `tensors`: for each direction the bytes of every tensor, in the order of the model, and of the rest."""

    traffic: Traffic
    tensors: dict[str, dict[str, int]]

    @classmethod
    def read(cls, folder: Path) -> RunBook:
        """In one pass, however long the ledger is."""
        tensors: dict[str, dict[str, int]] = {way: defaultdict(int) for way in WAYS}

        def counted() -> Iterator[dict[str, Any]]:
            for line in ledger.read(folder / "ledger.jsonl"):
                found = tensors[line["direction"]]
                for name, n_bytes in line["tensors"].items():
                    found[name] += n_bytes
                found[REST] += line["n_bytes"] - sum(line["tensors"].values())
                yield line

        traffic = Traffic.of(counted(), ledger.read(folder / "timings.jsonl"))
        return cls(traffic, {way: dict(found) for way, found in tensors.items()})

    def by_client(self, way: str) -> list[float]:
        """Bytes of each client over the whole run."""
        return [float(n) for n in (self.traffic.up if way == "up" else self.traffic.down).sum(axis=0)]
