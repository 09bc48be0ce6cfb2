"""A bounded table of what clients hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from perbit.channels import Layout, State
from perbit.channels.store import OnDisk
from perbit.kernels.api import F32

_FEWEST = 4  # references that are held even where room is scarce
_SHELVED = 10_000  # anchors that are kept on disk at the most, each the size of a model


@dataclass(frozen=True)
class Spot:
    """A client's place: which reference it was last sent in full, which it holds, and the digest of that one."""

    anchor: int
    at: int
    digest: bytes


@dataclass(eq=False)
class Reference:
    """The memory of all clients at one reference, and how many clients are there or have it as their anchor."""

    state: State
    is_anchor: bool
    users: int = 0


@dataclass(eq=False)
class References:
    """The server's side: the model, and a bounded table of what clients hold, the least recently used first.

    Made and dropped as clients come and go: a table, not a value. What is lost when a result is dropped is only room in it.
    With a folder, anchors that leave the table go to a shelf on disk, and stay there as long as somebody may need them.
    """

    layout: Layout
    model: F32
    table: dict[int, Reference] = field(default_factory=dict)
    # of this model, by where it starts: the frame, and which reference it leads to, with its digest
    coded: dict[int, tuple[bytes, int, bytes]] = field(default_factory=dict)
    made: int = 0
    shelf: OnDisk | None = None
    shelved: dict[int, Reference] = field(default_factory=dict)  # the anchors there; their states are only on disk

    def keep_in(self, folder: str, is_durable: bool) -> None:
        """Anchors that leave the table go to a file of this folder."""
        self.shelf = OnDisk(Path(folder), self.table[self.made].state, cached=0, is_durable=is_durable)

    def __contains__(self, name: int) -> bool:
        """Whether clients can go on from here: what was coded already needs no reference any more."""
        return name in self.coded or self._find(name) is not None

    def state_of(self, name: int) -> State:
        return self.table[name].state if self.shelf is None or name in self.table else self.shelf.get(name)

    def _find(self, name: int) -> Reference | None:
        return self.table.get(name) or self.shelved.get(name)

    def add(self, state: State, is_anchor: bool) -> int:
        self.made += 1
        self.table[self.made] = Reference(state, is_anchor)
        return self.made

    def touch(self, spot: Spot) -> None:
        """A client was here: these are the most recently used ones now."""
        for rows in (self.table, self.shelved):
            for name in (spot.anchor, spot.at):
                if name in rows:
                    rows[name] = rows.pop(name)

    def occupy(self, spot: Spot) -> None:
        for name in (spot.anchor, spot.at):
            if (found := self._find(name)) is not None:
                found.users += 1

    def leave(self, spot: Spot) -> None:
        for name in (spot.anchor, spot.at):
            if (found := self._find(name)) is not None:
                found.users -= 1
                self._drop_unused(name)

    def go_on(self, model: F32) -> None:
        """To a new model, which no client has reached yet."""
        reached = [to for _, to, _ in self.coded.values()]
        self.model, self.coded = model, {}
        for name in reached:
            self._drop_unused(name)

    def _drop_unused(self, name: int) -> None:
        found = self._find(name)
        if found is not None and found.users == 0 and name not in {to for _, to, _ in self.coded.values()}:
            self._drop(name)

    def _drop(self, name: int) -> None:
        self.table.pop(name, None)
        if self.shelf is not None and self.shelved.pop(name, None) is not None:
            self.shelf.put({}, gone=[name])

    def shrink(self, keep: int) -> None:
        """Forget the least recently used. Anchors go last, for everybody can fall back on them, and to the shelf if there is one; but a
        tenth of the room is not theirs, so that clients in step can always go on from where they are."""
        room = keep - max(1, keep // 10)
        while len(self.table) > keep:
            is_crowded = sum(found.is_anchor for found in self.table.values()) > room
            name = next(name for name, found in self.table.items() if found.is_anchor == is_crowded)
            if is_crowded and self.shelf is not None:
                self._put_on_shelf(self.shelf, name)
            else:
                self._drop(name)

    def give_way(self) -> bool:
        """Hold less: a reference, or a frame that can be made again; whether there was any."""
        if len(self.table) > _FEWEST:
            self.shrink(len(self.table) - 1)
            return True
        spare = next((base for base, (frame, _, _) in self.coded.items() if frame), None)
        if spare is not None:
            to = self.coded.pop(spare)[1]
            self._drop_unused(to)
        return spare is not None

    def _put_on_shelf(self, shelf: OnDisk, name: int) -> None:
        shelf.put({name: self.table[name].state})
        self.shelved[name] = replace(self.table.pop(name), state=shelf.first)
        if len(self.shelved) > _SHELVED:
            self._drop(next(iter(self.shelved)))

    def copied(self) -> References:
        """A table of its own with the same entries."""
        table = {name: replace(found) for name, found in self.table.items()}
        return replace(self, table=table, coded=dict(self.coded))
