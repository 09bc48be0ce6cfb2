"""Chunks of 2^20 values are independent: one loop runs them in order or on threads, with the same bytes either way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perbit.kernels import CHUNK

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_pool: ThreadPoolExecutor | None = None
_threads = 1
_local = threading.local()


def set_threads(count: int) -> None:
    """Use `count` threads for large arrays (1 = the caller's own). Results never depend on it."""
    global _threads
    if count < 1:
        raise ValueError(f"threads must be at least 1, got {count}")
    _threads = count
    _open_pool()


def _open_pool() -> None:
    global _pool
    _pool = ThreadPoolExecutor(_threads, thread_name_prefix="perbit") if _threads > 1 else None


def get_threads() -> int:
    """How many threads large arrays use."""
    return _threads


def chunks(n: int, length: int = CHUNK) -> Iterator[tuple[int, int]]:
    """The half-open ranges [lo, hi) that cut n values into chunks.

    >>> [hi - lo for lo, hi in chunks(2**20 + 5)]
    [1048576, 5]
    """
    return ((lo, min(n, lo + length)) for lo in range(0, n, length))


def scratch(n: int, dtype: type[np.generic]) -> NDArray[Any]:
    """An array of n ≤ CHUNK elements that this thread may use until it asks again: fresh pages for every chunk would cost more than coding it."""
    kept: dict[Any, NDArray[Any]] = _local.__dict__
    if n > len(kept.get(dtype, ())):
        kept[dtype] = np.empty(n, dtype)
    return kept[dtype][:n]


class Shelf:
    """Room for what lasts until a frame is joined or delivered, in large blocks: many small allocations would each pay for fresh pages."""

    BLOCK = 1 << 24
    ALIGNED = 64

    def __init__(self) -> None:
        self.block, self.used = np.empty(0, np.uint8), 0

    def room(self, n_bytes: int) -> NDArray[np.uint8]:
        """At least so many free bytes."""
        if n_bytes > self.block.size - self.used:
            self.block, self.used = np.empty(max(self.BLOCK, n_bytes), np.uint8), 0
        return self.block[self.used :]

    def keep(self, n_bytes: int) -> memoryview:
        """Take the first bytes of the room for good. A block lives as long as a view of it."""
        self.used += n_bytes
        return self.block[self.used - n_bytes : self.used].data

    def array(self, n: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Room for n elements, taken for good."""
        n_bytes = n * np.dtype(dtype).itemsize
        self.room(n_bytes + self.ALIGNED)
        self.used += -self.used % self.ALIGNED
        return np.asarray(self.keep(n_bytes)).view(dtype)


def shelf() -> Shelf:
    """This thread's shelf."""
    if not hasattr(_local, "shelf"):
        _local.shelf = Shelf()
    found: Shelf = _local.shelf
    return found


def run(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """The results of `work` over `items`, in order."""
    return map(work, items) if _pool is None else _pool.map(work, items)


set_threads(int(os.environ.get("PERBIT_THREADS") or 1))
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_open_pool)  # a forked child has its parent's pool, but none of its threads
