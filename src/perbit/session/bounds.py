"""What one client may cost the others: how far its update may be from theirs, how often it is sent everything again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

import numpy as np

from perbit.errors import DecodeError, SpecError, StateMismatch
from perbit.kernels.api import F32
from perbit.session.serverstate import ClientId

_LATEST = 255  # norms that the median is of
_FEWEST = 3  # of which it means something


class TooLarge(DecodeError):  # noqa: N818  as StaleAnswer
    """An update far larger than those of the others. It is left out; the client keeps its place."""


class TooManyResyncs(StateMismatch):
    """A client asks for the whole model more often than it may. It is left out until there is a new one."""


class NormBound:
    """Refuses updates whose norm is more than `most` times the median of the latest ones; None: takes them all."""

    def __init__(self, most: float | None) -> None:
        if most is not None and not (math.isfinite(most) and most > 1):
            raise SpecError(f"max_norm is relative to the median of the clients' norms and must be above 1, got {most}")
        self.most = most
        self.latest: deque[float] = deque(maxlen=_LATEST)

    def check(self, client: ClientId, update: F32) -> float:
        """The norm of an update that may be taken."""
        if self.most is None:
            return 0.0
        norm = float(np.linalg.norm(update.astype(np.float64)))
        usual = median(self.latest) if len(self.latest) >= _FEWEST else 0.0
        if usual and norm > self.most * usual:
            raise TooLarge(
                f"the update of client {client} has norm {norm:.3g}, more than {self.most:g} times the usual {usual:.3g}"
            )
        return norm

    def count(self, norm: float) -> None:
        """One more that was taken."""
        if self.most is not None:
            self.latest.append(norm)

    def restore(self, norms: Iterable[float]) -> None:
        self.latest = deque(norms, maxlen=_LATEST)


class ResyncBound:
    """A client may bring about so many full frames of one version of the model, and so no more bytes than they take.

    Args:
        most: full frames for each client.
        most_clients: who may ask of one version; whoever comes later has to wait for the next.
    """

    def __init__(self, most: int, most_clients: float = math.inf) -> None:
        if type(most) is not int or most < 1:
            raise SpecError(f"max_resyncs must be a whole number of at least 1, got {most!r}")
        self.most, self.most_clients = most, most_clients
        self._counts: dict[ClientId, int] = {}
        self._promised: set[ClientId] = set()

    def allows(self, client: ClientId) -> bool:
        """Whether there is one more for this client; it is counted then."""
        allowed = self.has_more(client)
        if allowed:
            self._counts[client] = self._counts.get(client, 0) + 1
        return allowed

    def has_more(self, client: ClientId) -> bool:
        """Whether there is one more, without counting it."""
        count = self._counts.get(client)
        return len(self._counts) < self.most_clients if count is None else count < self.most

    def __len__(self) -> int:
        """How many clients have asked."""
        return len(self._counts)

    def promise(self, client: ClientId) -> None:
        """A client asked for a full frame, which was counted, and may have it."""
        self._promised.add(client)

    def is_promised(self, client: ClientId) -> bool:
        """Whether there was a promise; it is kept now."""
        was_promised = client in self._promised
        self._promised.discard(client)
        return was_promised

    def start_anew(self) -> None:
        """There is a new version."""
        self._counts.clear()
        self._promised.clear()
