"""Whether seeds tell two methods apart: a claim states its test before the run, and ends reproduced, not reproduced or inconclusive."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["REPRODUCED", "NOT REPRODUCED", "INCONCLUSIVE"]


@dataclass(frozen=True)
class Claim:
    """That one method does better than another, seed by seed.

    Args:
        text: what is claimed, in words.
        least: the least mean advantage worth naming, above 0; or below 0, the most that may be lost where the claim is that nothing much is.
        level: how often a test may be wrong by chance.
    """

    text: str
    least: float = 0.0
    level: float = 0.05

    def judged(self, ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
        """The verdict on results that belong together pair by pair; larger is better.

        >>> print(Claim("a beats b", least=0.01).judged([0.91, 0.92, 0.93], [0.81, 0.83, 0.82]))
        REPRODUCED: a beats b: +0.1000 ± 0.0100 over 3 pairs, p = 0.002
        >>> print(Claim("a beats b", least=0.01).judged([0.91, 0.92, 0.93], [0.93, 0.90, 0.92]))
        INCONCLUSIVE: a beats b: +0.0033 ± 0.0208 over 3 pairs, p = 0.404
        >>> print(Claim("a loses at most a point", least=-0.01).judged([0.91, 0.92, 0.93], [0.915, 0.923, 0.936]))
        REPRODUCED: a loses at most a point: -0.0047 ± 0.0015 over 3 pairs, p = 0.013
        """
        away = differences(ours, theirs)
        above = chance_of_more(away, min(self.least, 0.0))
        if above < self.level and statistics.fmean(away) >= self.least:
            return Verdict(self, "REPRODUCED", away, above)
        below = chance_of_more([-d for d in away], -self.least)
        return Verdict(self, "NOT REPRODUCED" if below < self.level else "INCONCLUSIVE", away, above)


@dataclass(frozen=True)
class Verdict:
    """How a claim ended."""

    claim: Claim
    outcome: Outcome
    differences: list[float]
    p: float  # that chance alone gives such an advantage, or one this much better than the loss allowed

    def __str__(self) -> str:
        n = len(self.differences)
        spread = f" ± {statistics.stdev(self.differences):.4f}" if n > 1 else ""
        pairs = f"{n} pairs" if n > 1 else "one pair"
        numbers = f"{statistics.fmean(self.differences):+.4f}{spread} over {pairs}"
        return f"{self.outcome}: {self.claim.text}: {numbers}, p = {self.p:.3f}"


def differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Pair by pair.

    >>> differences([0.5, 0.75], [0.25, 0.5])
    [0.25, 0.25]
    """
    if not ours or len(ours) != len(theirs):
        raise ValueError(
            f"a paired test needs as many results of one as of the other, got {len(ours)} and {len(theirs)}"
        )
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def chance_of_more(values: Sequence[float], than: float = 0.0) -> float:
    """The p-value of a one-sided t-test that the mean of values lies above a number; 1 if there is but one of them.

    >>> round(chance_of_more([1.0, 2.0, 3.0]), 4)  # t = 2·√3 with two degrees of freedom
    0.0371
    """
    n = len(values)
    if n < 2:
        return 1.0
    away, spread = statistics.fmean(values) - than, statistics.stdev(values)
    if spread == 0:
        return 0.0 if away > 0 else 1.0
    return student_tail(away / spread * math.sqrt(n), n - 1)


def student_tail(t: float, degrees: int) -> float:
    """The chance that a value of Student's t distribution lies above t, by its finite series for whole degrees of freedom.

    >>> round(student_tail(2.92, 2), 3), round(student_tail(2.015, 5), 3)  # as in printed tables
    (0.05, 0.05)
    """
    angle = math.atan2(t, math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= square * (k - 1) / k
        total += term
    share = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 - share) / 2
