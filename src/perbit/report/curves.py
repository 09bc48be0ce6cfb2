"""From outcomes to curves: one line a method, the mean over seeds, with the range between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.sim.compare.config import Comparison
from perbit.sim.compare.links import Link, round_seconds
from perbit.sim.federated import ledger
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.settings import Method

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """A method through training; row 0 is before the first round."""

    method: Method
    rounds: F64
    accuracy: F64  # seeds × evaluations
    mb_up: F64
    seconds: dict[str, F64]  # by link

    @property
    def mean(self) -> F64:
        return np.asarray(self.accuracy.mean(axis=0))


def curves(comparison: Comparison, outcomes: Sequence[Outcome], folders: Sequence[Path]) -> list[Curve]:
    """One curve a method; seeds that diverged early cut it short."""
    n = len(comparison.seeds)
    return [
        _curve(comparison, method, outcomes[i * n : (i + 1) * n], folders[i * n : (i + 1) * n])
        for i, method in enumerate(comparison.methods)
    ]


def _curve(comparison: Comparison, method: Method, of: Sequence[Outcome], folders: Sequence[Path]) -> Curve:
    length = min(len(outcome["history"]) for outcome in of)

    def column(key: str) -> F64:
        return np.array([[point[key] for point in outcome["history"][:length]] for outcome in of], float)

    rounds = column("round")[0]
    books = [(list(ledger.read(f / "ledger.jsonl")), list(ledger.read(f / "timings.jsonl"))) for f in folders]
    seconds = {link.name: _elapsed(books, link, rounds) for link in comparison.links}
    return Curve(method, rounds, column("accuracy"), column("bytes_up").mean(axis=0) / 1e6, seconds)


def _elapsed(books: Sequence[tuple[list[Any], list[Any]]], link: Link, rounds: F64) -> F64:
    """Modelled seconds after each evaluated round, the mean over seeds."""
    runs = []
    for lines, clocks in books:
        elapsed = [0.0, *accumulate(round_seconds(lines, clocks, link))]
        runs.append([elapsed[int(done)] for done in rounds])
    return np.asarray(np.mean(runs, axis=0))
