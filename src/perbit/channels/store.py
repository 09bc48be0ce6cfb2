"""Where a server keeps one state for each of its workers: in memory, or in a file that the operating system pages in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from perbit.channels.base import Memory, State, freeze
from perbit.kernels.api import F32


class Store(ABC):
    """The states of N workers. `put` gives the store that holds the changed ones."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get(self, worker: int) -> State: ...

    @abstractmethod
    def put(self, changed: Mapping[int, State]) -> Store: ...


class InMemory(Store):
    """A plain value: `put` leaves the old store as it was.

    >>> from perbit.channels import Direct
    >>> state = Direct("raw").init(3)[0]
    >>> store = InMemory([state, state])
    >>> store.put({1: State(state.layout, 7, state.link, ())}).get(1).sequence, store.get(1).sequence
    (7, 0)
    """

    def __init__(self, states: list[State]) -> None:
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def get(self, worker: int) -> State:
        return self._states[worker]

    def put(self, changed: Mapping[int, State]) -> Store:
        return InMemory([changed.get(worker, state) for worker, state in enumerate(self._states)])


class OnDisk(Store):
    """Memories as rows of a file. Only the rows in use are in memory; `put` writes them, so here committing is final."""

    def __init__(self, path: Path, first: State, n_workers: int) -> None:
        arrays = _arrays(first.memory)
        self._first, self._path = first, path
        shape = (n_workers, max(1, len(arrays)), first.layout.n)
        self._rows = np.memmap(path, np.float32, "w+", shape=shape)
        self._heads = [(first.sequence, first.link)] * n_workers
        if any(array.any() for array in arrays):
            for worker in range(n_workers):
                self._write(worker, first)

    def __len__(self) -> int:
        return len(self._heads)

    def get(self, worker: int) -> State:
        sequence, link = self._heads[worker]
        rows = iter([np.array(row) for row in self._rows[worker]])
        return State(self._first.layout, sequence, link, freeze(_rebuilt(self._first.memory, rows)))

    def put(self, changed: Mapping[int, State]) -> Store:
        for worker, state in changed.items():
            self._write(worker, state)
            self._heads[worker] = (state.sequence, state.link)
        return self

    def _write(self, worker: int, state: State) -> None:
        for row, array in zip(self._rows[worker], _arrays(state.memory), strict=False):
            row[:] = array


def _arrays(memory: Memory) -> list[F32]:
    found: list[F32] = []
    for part in memory:
        found += [part] if isinstance(part, np.ndarray) else _arrays(part)
    return found


def _rebuilt(like: Memory, rows: object) -> Memory:
    return tuple(
        next(rows) if isinstance(part, np.ndarray) else _rebuilt(part, rows)  # type: ignore[call-overload]
        for part in like
    )
