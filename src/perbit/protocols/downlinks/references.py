"""A bounded table of what clients hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from perbit.channels import Layout, State
from perbit.kernels.api import F32


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
    """

    layout: Layout
    model: F32
    table: dict[int, Reference] = field(default_factory=dict)
    # of this model, by where it starts: the frame, and which reference it leads to, with its digest
    coded: dict[int, tuple[bytes, int, bytes]] = field(default_factory=dict)
    made: int = 0

    def add(self, state: State, is_anchor: bool) -> int:
        self.made += 1
        self.table[self.made] = Reference(state, is_anchor)
        return self.made

    def touch(self, spot: Spot) -> None:
        """A client was here: these are the most recently used ones now."""
        for name in (spot.anchor, spot.at):
            if name in self.table:
                self.table[name] = self.table.pop(name)

    def occupy(self, spot: Spot) -> None:
        for name in (spot.anchor, spot.at):
            if name in self.table:
                self.table[name].users += 1

    def leave(self, spot: Spot) -> None:
        for name in (spot.anchor, spot.at):
            if name in self.table:
                self.table[name].users -= 1
                self._drop_unused(name)

    def go_on(self, model: F32) -> None:
        """To a new model, which no client has reached yet."""
        reached = [to for _, to, _ in self.coded.values()]
        self.model, self.coded = model, {}
        for name in reached:
            if name in self.table:
                self._drop_unused(name)

    def _drop_unused(self, name: int) -> None:
        if self.table[name].users == 0 and name not in {to for _, to, _ in self.coded.values()}:
            del self.table[name]

    def shrink(self, keep: int) -> None:
        """Forget the least recently used. Anchors go last, for everybody can fall back on them; but a tenth of the room is not theirs,
        so that clients in step can always go on from where they are."""
        room = keep - max(1, keep // 10)
        while len(self.table) > keep:
            is_crowded = sum(found.is_anchor for found in self.table.values()) > room
            del self.table[next(name for name, found in self.table.items() if found.is_anchor == is_crowded)]

    def copied(self) -> References:
        """A table of its own with the same entries."""
        table = {name: replace(found) for name, found in self.table.items()}
        return replace(self, table=table, coded=dict(self.coded))
