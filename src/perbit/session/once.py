"""Simulated clients in step: what one of them decoded, the others need not decode, nor hold a second time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Once:
    """Results of one round, each computed once for the same key; `keep` holds the objects whose identities are in the key."""

    def __init__(self) -> None:
        self._results: dict[Any, tuple[Any, Any]] = {}

    def once(self, key: Any, keep: Any, compute: Callable[[], Any]) -> Any:
        if key not in self._results:
            self._results[key] = compute(), keep
        return self._results[key][0]

    def clear(self) -> None:
        self._results.clear()
