"""Rate-distortion bounds of GenNorm sources against known values."""

from __future__ import annotations

import numpy as np
import pytest

from perbit.gennorm import GenNorm, bounds, design, distortion_rate, shannon_lower_bound

RATES = np.array([0.25, 0.5, 1, 1.5, 2, 3, 4])
BOUND_DB = {
    0.5: [-3.56, -5.69, -9.27, -12.52, -15.64, -21.77, -27.79],
    1.0: [-1.96, -3.58, -6.63, -9.65, -12.67, -18.69, -24.71],
    2.0: [-1.51, -3.01, -6.02, -9.03, -12.04, -18.06, -24.08],
}


@pytest.mark.parametrize("beta", BOUND_DB)
def test_known_values(beta):
    assert bounds.db(distortion_rate(beta, RATES)) == pytest.approx(BOUND_DB[beta], abs=0.05)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_shape_of_the_curve(beta):
    rates = np.linspace(0, 8, 161)
    d = distortion_rate(beta, rates)
    assert d[0] == pytest.approx(1.0, abs=1e-3)  # at no rate the error is the variance
    assert np.all(np.diff(d) < 0)
    assert np.all(d >= shannon_lower_bound(beta, rates) * (1 - 1e-9))
    assert np.all(np.diff(d, 2) > -1e-3)  # convex, up to interpolation


def test_normal_source_is_exact():
    assert distortion_rate(2.0, RATES) == pytest.approx(4.0**-RATES, rel=0.003)
    assert shannon_lower_bound(2.0, RATES) == pytest.approx(4.0**-RATES, rel=1e-12)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_no_lloyd_quantizer_beats_the_bound(beta):
    d = GenNorm.with_std(beta)
    for bits in (1, 2, 3, 4):
        c = design(beta, 0, bits)[1 << (bits - 1) :]  # the positive half: the other is the same
        t = np.concatenate([[0.0], (c[1:] + c[:-1]) / 2, [np.inf]])
        p, m1 = d.cell_moments(0, t), d.cell_moments(1, t)
        mse = 1 - 4 * float(c @ m1) + 2 * float(c * c @ p)
        entropy = float(-2 * p @ np.log2(p))
        assert mse > float(distortion_rate(beta, entropy))


def test_bad_input():
    with pytest.raises(ValueError, match="rate"):
        distortion_rate(1.0, -0.1)
