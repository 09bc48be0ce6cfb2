"""Claims about seeds: the t-test beside scipy's, the three ends of a claim, and how often chance passes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from perbit.sim.verdicts import Claim, chance_of_more, student_tail


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 11, 40])
@pytest.mark.parametrize("t", [-6.0, -0.3, 0.0, 0.7, 2.9, 30.0])
def test_the_tail_is_students(degrees: int, t: float) -> None:
    assert student_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), abs=1e-12)


def test_the_test_is_the_paired_one_sided_t_test() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.1, 1, 7), rng.normal(0, 1, 7)
    found = Claim("any").judged(list(ours), list(theirs))
    assert found.p == pytest.approx(stats.ttest_rel(ours, theirs, alternative="greater").pvalue, abs=1e-12)


@pytest.mark.parametrize(
    ("least", "ours", "outcome"),
    [
        (0.01, [0.6, 0.61, 0.62], "REPRODUCED"),
        (0.01, [0.4, 0.41, 0.42], "NOT REPRODUCED"),
        (0.01, [0.5, 0.52, 0.49], "INCONCLUSIVE"),
        (0.2, [0.6, 0.61, 0.62], "NOT REPRODUCED"),  # better, but by far too little
        (-0.01, [0.497, 0.498, 0.499], "REPRODUCED"),  # nothing much is lost
        (-0.01, [0.47, 0.471, 0.472], "NOT REPRODUCED"),
        (-0.01, [0.47, 0.53, 0.50], "INCONCLUSIVE"),
    ],
)
def test_a_claim_ends_in_one_of_three_ways(least: float, ours: list[float], outcome: str) -> None:
    assert Claim("any", least).judged(ours, [0.5, 0.5, 0.5]).outcome == outcome


def test_one_seed_decides_nothing() -> None:
    assert Claim("any").judged([1.0], [0.0]).outcome == "INCONCLUSIVE"


def test_results_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="as many results"):
        Claim("any").judged([1.0, 2.0], [1.0])


def test_chance_passes_as_often_as_the_level_says() -> None:
    """Of 4000 claims about nothing a twentieth passes, give or take four standard deviations."""
    noise = np.random.default_rng(1).normal(size=(4000, 3))
    passed = sum(chance_of_more(list(row)) < 0.05 for row in noise)
    assert abs(passed - 200) < 4 * (4000 * 0.05 * 0.95) ** 0.5
