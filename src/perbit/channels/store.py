"""Where a server keeps one state for each of its clients: in memory, or in a file with the latest ones in memory."""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from perbit.channels.base import State
from perbit.channels.layout import Layout
from perbit.channels.tree import freeze, leaves, rebuilt
from perbit.coding.bits import bytes_of
from perbit.files import FileError, write_all

ClientId = Hashable
ROWS = "rows-"  # how the names of durable files begin


class Store(ABC):
    """The states of all clients; one that was never put holds `first`."""

    first: Any
    is_final: ClassVar[bool] = False  # whether `put` changes the store itself

    @abstractmethod
    def __len__(self) -> int:
        """How many clients were put."""

    @abstractmethod
    def __contains__(self, client: object) -> bool:
        """Whether there is a state of this client's own."""

    @abstractmethod
    def get(self, client: ClientId) -> Any: ...

    @abstractmethod
    def put(self, changed: Mapping[Any, Any], gone: Iterable[ClientId] = ()) -> Store:
        """The store with these states changed and those clients removed."""


class InMemory(Store):
    """A plain value: `put` leaves the old store as it was.

    >>> from perbit.channels import Direct
    >>> state = Direct("raw").init(3)[0]
    >>> store = InMemory(state)
    >>> store.put({1: State(state.layout, 7, state.link, ())}).get(1).sequence, store.get(1).sequence
    (7, 0)
    """

    def __init__(self, first: Any, states: Mapping[Any, Any] | None = None) -> None:
        self.first, self.states = first, dict(states or {})

    def __len__(self) -> int:
        return len(self.states)

    def __contains__(self, client: object) -> bool:
        return client in self.states

    def get(self, client: ClientId) -> Any:
        return self.states.get(client, self.first)

    def put(self, changed: Mapping[Any, Any], gone: Iterable[ClientId] = ()) -> Store:
        states = {**self.states, **changed}
        for client in gone:
            states.pop(client, None)
        return InMemory(self.first, states)


@dataclass(frozen=True, slots=True)
class Head:
    """Where a memory lies in the file, and what is not there."""

    row: int
    layout: Layout
    sequence: int
    link: bytes
    sizes: tuple[int, ...]


class OnDisk(Store):
    """Memories as rows of a file. `put` writes, so here it is final.

    A client of some of the tensors only has a row that is not full. Clients with one and the same state, as new ones have it, share a row
    until they go on from there.

    The file has no name and vanishes with the process, unless it is durable. Then no row that `table` told of is written over before
    `settle`, so what was saved of it stays true whatever comes after.

    Args:
        folder: where there is room; no file of anybody else is touched there.
        first: the state of a client that was never put.
        cached: so many of the latest states are also held in memory.
        is_durable: whether the file stays when the process ends.
        name: of the file, if it is there already ...
        heads: ... and what is in it.
    """

    is_final = True

    def __init__(
        self,
        folder: Path,
        first: State,
        cached: int = 4,
        is_durable: bool = False,
        name: str = "",
        heads: Mapping[Any, Head] | None = None,
    ) -> None:
        self.first, self.cached, self.is_durable, self.name = first, cached, is_durable, name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = self._opened(folder)
        except OSError as error:
            raise FileError(f"cannot keep memories in {folder}: {error.strerror}") from error
        weakref.finalize(self, self._file.close)
        self._row_bytes = sum(array.nbytes for array in leaves(first.memory))
        self._heads: dict[ClientId, Head] = dict(heads or {})
        self._users = [0] * (1 + max((head.row for head in self._heads.values()), default=-1))  # of each row
        for head in self._heads.values():
            self._users[head.row] += 1
        self._free = [row for row, users in enumerate(self._users) if not users]
        self._told = {head.row for head in self._heads.values()}  # rows that what was saved may speak of ...
        self._freed: list[int] = []  # ... and those of them that are free once something newer was saved
        self._latest: OrderedDict[ClientId, State] = OrderedDict()

    def _opened(self, folder: Path) -> IO[bytes]:
        if not self.is_durable:
            return tempfile.TemporaryFile("w+b", 0, dir=folder, prefix="perbit-")
        if self.name:
            return (folder / self.name).open("r+b", 0)
        handle, path = tempfile.mkstemp(dir=folder, prefix=ROWS, suffix=".bin")
        self.name = Path(path).name
        return open(handle, "w+b", 0)

    def __len__(self) -> int:
        return len(self._heads)

    def __contains__(self, client: object) -> bool:
        return client in self._heads

    @property
    def cached_states(self) -> Collection[State]:
        """Those that are held in memory as well."""
        return self._latest.values()

    def table(self) -> dict[ClientId, Head]:
        """What is in the file, which is safe on disk now."""
        os.fsync(self._file.fileno())
        self._told |= {head.row for head in self._heads.values()}
        return dict(self._heads)

    def settle(self) -> None:
        """The last `table` was saved, and those before are of no use any more."""
        self._told = {head.row for head in self._heads.values()}
        self._free += self._freed
        self._freed = []

    def get(self, client: ClientId) -> State:
        if client in self._latest:
            return self._latest[client]
        if client not in self._heads:
            return self.first  # type: ignore[no-any-return]
        head, values = self._heads[client], np.empty(sum(self._heads[client].sizes), np.float32)
        self._file.seek(self._row_bytes * head.row)
        _fill(self._file, bytes_of(values))
        memory = rebuilt(self.first.memory, np.split(values, np.cumsum(head.sizes[:-1], dtype=int)))
        state = State(head.layout, head.sequence, head.link, freeze(memory))
        self._remember(client, state)
        return state

    def put(self, changed: Mapping[Any, State], gone: Iterable[ClientId] = ()) -> Store:
        for client, state in changed.items():
            twin = next((other for other, known in self._latest.items() if known is state), None)
            self._move(client, self._written(client, state) if twin is None else self._heads[twin])
            self._remember(client, state)
        for client in gone:
            self._move(client, None)
            self._latest.pop(client, None)
        return self

    def _written(self, client: ClientId, state: State) -> Head:
        """Over the client's own row, unless others need it."""
        old = self._heads.get(client)
        own = None if old is None or self._users[old.row] > 1 or self._is_told(old.row) else old.row
        row = self._new_row() if own is None else own
        self._file.seek(self._row_bytes * row)
        try:
            for array in leaves(state.memory):
                _drain(self._file, bytes_of(np.ascontiguousarray(array)))
        except FileError:
            self._free += [row] if own is None else []
            raise
        sizes = tuple(array.size for array in leaves(state.memory))
        return Head(row, state.layout, state.sequence, state.link, sizes)

    def _move(self, client: ClientId, head: Head | None) -> None:
        """To a row, or away; a row that nobody needs any more is free."""
        old = self._heads.pop(client, None)
        if head is not None:
            self._heads[client] = head
            self._users[head.row] += 1
        if old is not None:
            self._users[old.row] -= 1
            rows = self._freed if self._is_told(old.row) else self._free
            rows += [] if self._users[old.row] else [old.row]

    def _is_told(self, row: int) -> bool:
        return self.is_durable and row in self._told

    def _remember(self, client: ClientId, state: State) -> None:
        self._latest[client] = state
        self._latest.move_to_end(client)
        while len(self._latest) > self.cached:
            self._latest.popitem(last=False)

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        self._users.append(0)
        return len(self._users) - 1


def _fill(file: IO[bytes], target: memoryview) -> None:
    """Read until the target is full; one call may bring less."""
    while len(target):
        n_bytes = file.readinto(target)  # type: ignore[attr-defined]
        if not n_bytes:
            raise FileError("the file with the clients' memories is shorter than it was written")
        target = target[n_bytes:]


def _drain(file: IO[bytes], source: memoryview) -> None:
    try:
        write_all(file, source)
    except OSError as error:
        raise FileError(f"cannot keep the clients' memories: {error.strerror}") from error


def store_in(folder: str | Path | None, first: State, is_durable: bool = False) -> Store:
    """States in memory, or in a file of this folder."""
    return InMemory(first) if folder is None else OnDisk(Path(folder), first, is_durable=is_durable)


STATE_TYPES = (Head,)


class Changes:
    """A store and what has changed since: written to it together, at the end of a round, but at once to a store on disk, so that the
    memories of a round's clients do not pile up."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._changed: dict[ClientId, Any] = {}
        self._gone: set[ClientId] = set()

    def get(self, client: ClientId) -> Any:
        if client in self._changed:
            return self._changed[client]
        return self.store.first if client in self._gone else self.store.get(client)

    def put(self, client: ClientId, state: Any) -> None:
        self._gone.discard(client)
        if self.store.is_final:
            self.store.put({client: state})
        else:
            self._changed[client] = state

    def remove(self, client: ClientId) -> None:
        """Strangers, of whom nothing is held, leave no trace."""
        self._changed.pop(client, None)
        if client in self.store:
            self._gone.add(client)

    def settle(self) -> Store:
        """Write the changes now, so that what they replaced is held no longer."""
        self.store, self._changed, self._gone = self.settled(), {}, set()
        return self.store

    @property
    def n_held(self) -> int:
        """How many states are held in memory, old ones that were changed included."""
        return 0 if self.store.is_final else len(self.store) + len(self._changed)

    def settled(self) -> Store:
        """The store with all changes."""
        return self.store.put(self._changed, self._gone)
