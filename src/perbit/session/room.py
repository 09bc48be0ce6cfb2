"""What a session may hold: so many clients, so many bytes. Who was unheard of for longest leaves first."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from perbit.errors import SpecError
from perbit.printing import logger
from perbit.protocols.downlinks import PerClient
from perbit.session.memory import ASKED, RECORD, footprint, held_by_clients
from perbit.session.receiving import Receiving

LOG = logger("perbit.session")


class Room(Receiving):
    """Counts what is held, and makes room after every call that may have added to it."""

    max_clients: int | None
    memory: int | None  # bytes

    @property
    def memory_used(self) -> int:
        """Bytes held between two calls: models, references and anchors, frames that are kept, memories and records of clients, and
        what waits for its answer. What is the same for many is counted once, except memories of clients, which are counted for each."""
        if self._model is None:
            return 0
        server, average = self._server, self._average
        common = footprint(server, self._model, self._first, self._bases, self._exact, *average.held)
        places, uplinks = held_by_clients(self._places), held_by_clients(average.uplinks)
        under_way = len(self._pending) * footprint(server.places.first) if self._holds_places else 0
        return (
            common
            + places * self._holds_places
            + uplinks
            + under_way
            + RECORD * (len(self._clients) + len(self._pending))
            + ASKED * len(self._resyncs)
            + self._parts.n_bytes
        )

    @property
    def _holds_places(self) -> bool:
        """Whether what is known of a client on the way down is a memory of its own."""
        return isinstance(self.protocol.downlink, PerClient)

    def _make_room(self) -> None:
        """Forget those unheard of for longest, where they are too many or what is held is too much."""
        while len(self._clients) > self._most_clients:
            self._forget(next(iter(self._clients)))
        while self.memory is not None and self.memory_used > self.memory:
            oldest = list(islice(self._clients, max(1, len(self._clients) // 100)))
            if self.protocol.downlink.give_way(self._server.downlink):
                continue
            if oldest:
                LOG.info("no room for %d clients: they get a full model should they come back", len(oldest))
                for client in oldest:
                    self._forget(client)
                self._let_go()
            elif len(self._pending) > 1:
                self._abandon(next(iter(self._pending)))
            else:
                return

    def _let_go(self) -> None:
        """Of the memories of those who were forgotten, and of those that newer ones replace."""
        average = self._average
        average.server = replace(average.server, uplinks=average.uplinks.settle(), places=self._places.settle())

    def _check_room(self) -> None:
        """A limit that not even one client's round fits into is refused at once."""
        model = self._present_model()
        needed = self.memory_used + 6 * footprint(model.flat, model.exact) + 4 * RECORD
        if self.memory is not None and needed > self.memory:
            self._model = None
            raise SpecError(f"memory={self.memory} bytes is too little for this model, which needs at least {needed}")

    @property
    def _most_clients(self) -> float:
        if self.max_clients is not None:
            return self.max_clients
        keeps_memories = self._server.predicted is not None or self._holds_places
        return 10_000 if keeps_memories and self.protocol.folder is None else float("inf")
