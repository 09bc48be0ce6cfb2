"""Numbers of one process in a file of its own: they are still there after it was killed."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

NAMES = (
    "started", "began_anew", "sent", "full", "full_to_hostile", "needless", "received", "stale", "refused", "resyncs", "rounds",
    "exchanges", "dropped", "damaged", "replayed", "doubled",
    "delayed", "hostile", "compared", "differed", "unusable_states", "unexpected",
)  # fmt: skip


class Counters:
    """One writer; anybody may read."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * len(NAMES)))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8 * len(NAMES))

    def add(self, name: str, count: int = 1) -> None:
        at = 8 * NAMES.index(name)
        struct.pack_into("<Q", self._memory, at, struct.unpack_from("<Q", self._memory, at)[0] + count)

    def all(self) -> dict[str, int]:
        return dict(zip(NAMES, struct.unpack(f"<{len(NAMES)}Q", self._memory[:]), strict=True))


def total(folder: Path, pattern: str) -> dict[str, int]:
    """The sums over the processes whose files match."""
    rows = [Counters(path).all() for path in sorted(folder.glob(pattern))]
    return {name: count for name in NAMES if (count := sum(row[name] for row in rows))}
