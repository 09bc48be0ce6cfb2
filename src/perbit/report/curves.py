"""From outcomes to curves: one line a method, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from perbit.report.books import RunBook
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.links import Link
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.settings import Method

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """A method through training, seeds × evaluations; column 0 is before the first round."""

    method: Method
    rounds: F64
    accuracy: F64
    loss: F64  # NaN where it was not finite
    mb: dict[str, F64]  # up, down
    books: Sequence[RunBook]

    @property
    def mean(self) -> F64:
        return np.asarray(self.accuracy.mean(axis=0))

    @property
    def mb_up(self) -> F64:
        return np.asarray(self.mb["up"].mean(axis=0))

    def elapsed(self, link: Link) -> F64:
        """Modelled seconds after each evaluated round, the mean over seeds."""
        runs = []
        for book in self.books:
            elapsed = [0.0, *accumulate(book.traffic.seconds(link))]
            runs.append([elapsed[int(done)] for done in self.rounds])
        return np.asarray(np.mean(runs, axis=0))


def curves(comparison: Comparison, outcomes: Sequence[Outcome], books: Sequence[RunBook]) -> list[Curve]:
    """One curve a method; seeds that diverged early cut it short."""
    n = len(comparison.seeds)
    return [
        _curve(method, outcomes[i * n : (i + 1) * n], books[i * n : (i + 1) * n])
        for i, method in enumerate(comparison.methods)
    ]


def _curve(method: Method, of: Sequence[Outcome], books: Sequence[RunBook]) -> Curve:
    length = min(len(outcome["history"]) for outcome in of)

    def column(key: str) -> F64:
        return np.array([[point[key] for point in outcome["history"][:length]] for outcome in of], float)

    mb = {way: column(f"bytes_{way}") / 1e6 for way in ("up", "down")}
    return Curve(method, column("round")[0], column("accuracy"), column("loss"), mb, books)
