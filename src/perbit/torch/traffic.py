"""What was sent and how long it took: in all, and in the step that began last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Traffic:
    """Counters. Several threads may count at once, each its own things."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.dense_bytes = 0  # what float32 would have sent
        self.seconds = {"encode": 0.0, "exchange": 0.0, "wait": 0.0}
        self._before = self.totals()

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time of the block to `seconds[what]`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - begin

    def begin_step(self) -> None:
        self._before = self.totals()

    def totals(self) -> dict[str, float]:
        return {
            "bytes": self.sent_bytes,
            "dense_bytes": self.dense_bytes,
            **{f"{what}_seconds": seconds for what, seconds in self.seconds.items()},
        }

    def metrics(self) -> dict[str, float]:
        """Of the step that began last, and `total_bytes` and `total_ratio` of all steps."""
        totals = self.totals()
        step = {key: value - self._before[key] for key, value in totals.items()}
        return {
            **step,
            "ratio": ratio(step["dense_bytes"], step["bytes"]),
            "total_bytes": totals["bytes"],
            "total_ratio": ratio(totals["dense_bytes"], totals["bytes"]),
        }


def ratio(dense_bytes: float, sent_bytes: float) -> float:
    """How many times fewer bytes; NaN if nothing was sent."""
    return dense_bytes / sent_bytes if sent_bytes else float("nan")
