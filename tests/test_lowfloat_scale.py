"""The optimal pre-scale of low-bit float formats."""

from __future__ import annotations

import numpy as np
import pytest

from perbit.gennorm import BETAS, GenNorm, optimal_scale, paper_scale_fp4, paper_scale_fp8, table_scale
from perbit.gennorm.lowfloat import levels, max_code, mse
from perbit.gennorm.tables import FORMATS


def test_levels_of_the_paper():
    assert levels(2, 1).tolist() == [0, 0.5, 1, 1.5, 2, 3]
    assert levels(2, 1, full=True).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    fp8 = levels(5, 2)
    assert (2 * fp8.size - 1, fp8[-1], fp8[1]) == (247, 57344, 2.0**-16)
    assert levels(4, 3, full=True)[-1] == 480
    assert levels(1, 2, full=True).tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert levels(1, 0).tolist() == [0]


@pytest.mark.parametrize(("e", "m"), FORMATS)
def test_levels_ascend(e, m):
    for full in (False, True):
        assert np.all(np.diff(levels(e, m, full)) > 0)
        assert levels(e, m, full).size == max_code(e, m, full) + 1


@pytest.mark.parametrize(
    ("beta", "e", "m", "scale"), [(1.0, 2, 1, 0.65), (0.5, 2, 1, 0.05), (2.0, 4, 3, 9.0), (1.0, 5, 2, 2933.0)]
)
def test_error_by_simulation(beta, e, m, scale):
    x = GenNorm(beta, 1.0).sample(400_000, seed=1)
    lv = levels(e, m)
    nearest = lv[np.searchsorted((lv[1:] + lv[:-1]) / 2, np.abs(x) * scale)] / scale
    assert float(mse(scale, beta, e, m)) == pytest.approx(float(np.mean((np.abs(x) - nearest) ** 2)), rel=0.03)


@pytest.mark.parametrize("beta", np.linspace(0.5, 2.0, 13))
def test_equation_15_is_within_four_per_cent(beta):
    assert paper_scale_fp4(beta) == pytest.approx(optimal_scale(float(beta), 2, 1), rel=0.04)


def test_laplace_fp4():
    assert optimal_scale(1.0, 2, 1) == pytest.approx(0.652, abs=5e-4)
    assert paper_scale_fp4(1.0) == pytest.approx(0.650, abs=1e-9)


def test_equation_16():
    assert paper_scale_fp8(0.36) < 0 < paper_scale_fp8(0.38)
    assert paper_scale_fp8(2.12) > 0 > paper_scale_fp8(2.14)
    for beta in (0.5, 1.0, 1.5, 2.0):  # anywhere on the plateau is as good
        at_paper, best = mse(paper_scale_fp8(beta), beta, 5, 2), mse(optimal_scale(beta, 5, 2), beta, 5, 2)
        assert best <= at_paper < 1.05 * best


@pytest.mark.parametrize(("e", "m"), [(1, 2), (2, 1), (3, 0), (4, 3), (5, 2)])
@pytest.mark.parametrize("beta", [0.25, 0.8, 4.0])
@pytest.mark.parametrize("full", [False, True])
def test_nothing_beats_the_optimum(beta, e, m, full):
    best = optimal_scale(beta, e, m, full)
    others = best * np.concatenate([2.0 ** np.linspace(-8, 8, 81), 1 + np.array([-1e-2, -1e-3, 1e-3, 1e-2])])
    assert np.all(mse(others, beta, e, m, full) >= float(mse(best, beta, e, m, full)) * (1 - 2e-7))


@pytest.mark.parametrize(("beta", "e", "m"), [(0.25, 3, 2), (0.5, 2, 1), (1.0, 2, 1), (2.0, 3, 1), (1.0, 1, 2)])
def test_optimum_to_six_digits(beta, e, m):
    # At the optimum s = E[L²]/E[L|x|] for the levels L; below it this ratio lies above s, beyond it below.
    lv, best, dist = levels(e, m), optimal_scale(beta, e, m), GenNorm(beta, 1.0)
    for s, above in ((best * (1 - 1e-6), True), (best * (1 + 1e-6), False)):
        edges = np.concatenate([[0.0], (lv[1:] + lv[:-1]) / (2 * s), [np.inf]])
        ratio = float(lv**2 @ dist.cell_moments(0, edges)) / float(lv @ dist.cell_moments(1, edges))
        assert (ratio > s) == above


def test_shipped_scales():
    for i in (0, 50):
        for e, m in ((1, 1), (2, 1), (5, 2)):
            for full in (False, True):
                assert table_scale(i, e, m, full) == pytest.approx(optimal_scale(float(BETAS[i]), e, m, full), rel=1e-6)
    table = [
        table_scale(i, e, m, f)
        for i in range(65)
        for e, m in FORMATS
        for f in (False, True)
        if (e, m, f) != (1, 0, False)
    ]
    assert np.all(np.isfinite(table))
    assert min(table) > 0


def test_bad_formats():
    for bad in ((0, 3), (2, -1), (5, 3)):
        with pytest.raises(ValueError, match="low-bit float"):
            levels(*bad)
    with pytest.raises(ValueError, match="only level is zero"):
        optimal_scale(1.0, 1, 0)
    for bad in ((5, 3, False), (1, 0, False), (6, 1, True)):
        with pytest.raises(ValueError, match="no shipped scale"):
            table_scale(3, *bad)
