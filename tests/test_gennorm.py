"""The distribution, its special functions, fits, distances and integer priors against scipy and mpmath."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats

from perbit.errors import NonFiniteError
from perbit.gennorm import (
    BETAS,
    GenNorm,
    fit,
    fit_laplace,
    fit_normal,
    fit_stats,
    interval_masses,
    kurtosis,
    nearest_beta_index,
    normalise,
    table_levels,
    wasserstein,
)
from perbit.gennorm import fit as fit_function
from perbit.gennorm import special as sp
from perbit.gennorm.fit import beta_of_ratio, ratio_of_beta
from perbit.kernels import K

SHAPES = (0.1, 0.25, 0.3, 0.5, 0.77, 1.0, 1.5, 2.0, 3.0, 4.0, 10.0)
A = np.concatenate([np.geomspace(0.1, 10, 21), [20.0, 30.0, 44.0, 110.0]])[:, None]


def interval_table(beta_index: int, thresholds: np.ndarray, bits: int = 14) -> np.ndarray:
    """Frequencies of the intervals between thresholds, as the codecs derive them."""
    return normalise(interval_masses(beta_index, thresholds), bits)


def lower_gamma(a: np.ndarray | float, x: np.ndarray | float) -> np.ndarray:
    """P(a, x) as the cell from 0 to x."""
    a, x = np.broadcast_arrays(np.asarray(a, float), np.asarray(x, float))
    return sp.gammainc_cells(a[..., None], np.stack([np.zeros_like(x), x], axis=-1))[..., 0]


def relative(got: np.ndarray, want: np.ndarray) -> float:
    keep = np.abs(want) > 1e-290
    return float(np.max(np.abs(got[keep] - want[keep]) / np.abs(want[keep])))


class TestSpecial:
    def test_incomplete_gamma(self):
        x = np.geomspace(1e-12, 600, 200)[None]
        assert relative(lower_gamma(A, x), scipy.special.gammainc(A, x)) < 1e-12
        assert relative(sp.gammaincc(A, x), scipy.special.gammaincc(A, x)) < 1e-12

    @pytest.mark.parametrize(
        ("a", "x"), [(0.1, 1e-6), (0.1, 25.0), (2.5, 3.49), (2.5, 3.51), (10, 80), (10, 0.3), (44, 30)]
    )
    def test_incomplete_gamma_against_mpmath(self, a, x):
        with mpmath.workdps(40):
            p, q = float(mpmath.gammainc(a, 0, x, regularized=True)), float(mpmath.gammainc(a, x, regularized=True))
        assert float(lower_gamma(a, x)) == pytest.approx(p, rel=1e-12)
        assert float(sp.gammaincc(a, x)) == pytest.approx(q, rel=1e-12)

    def test_inverse(self):
        p = np.concatenate([np.geomspace(1e-200, 0.5, 40), np.linspace(0.51, 0.9999, 20)])[None]
        assert relative(sp.gammaincinv(A, p), scipy.special.gammaincinv(A, p)) < 1e-12
        assert relative(sp.gammainccinv(A, p), scipy.special.gammainccinv(A, p)) < 1e-12

    def test_ends(self):
        assert lower_gamma(2.0, [0.0, np.inf]).tolist() == [0.0, 1.0]
        assert sp.gammainccinv(2.0, [0.0, 1.0]).tolist() == [np.inf, 0.0]
        assert sp.gammaincinv(2.0, [0.0, 1.0]).tolist() == [0.0, np.inf]
        for bad in (lambda: lower_gamma(-1.0, 1.0), lambda: lower_gamma(1.0, -1.0), lambda: sp.gammaincinv(1.0, 1.5)):
            with pytest.raises(ValueError):
                bad()

    def test_log_gamma_and_digamma(self):
        a = np.geomspace(0.05, 200, 300)
        np.testing.assert_allclose(sp.gammaln(a), scipy.special.gammaln(a), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(sp.digamma(a), scipy.special.digamma(a), rtol=1e-12, atol=1e-14)

    def test_cells_do_not_cancel(self):
        edges = np.array([40.0, 40.0 + 1e-6, 41.0])
        with mpmath.workdps(40):
            want = [float(mpmath.gammainc(2, lo, hi, regularized=True)) for lo, hi in pairwise(edges)]
        assert sp.gammainc_cells(2.0, edges) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("beta", SHAPES)
class TestDistribution:
    def test_functions(self, beta):
        d, s = GenNorm(beta, 1.7, mu=0.4), scipy.stats.gennorm(beta, loc=0.4, scale=1.7)
        q = np.concatenate([np.geomspace(1e-12, 0.4, 30), np.linspace(0.41, 0.999999, 40)])
        x = s.ppf(q)
        np.testing.assert_allclose(d.ppf(q), x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(d.pdf(x), s.pdf(x), rtol=1e-9)
        np.testing.assert_allclose(d.logpdf(x), s.logpdf(x), rtol=1e-9)
        np.testing.assert_allclose(d.cdf(x), s.cdf(x), rtol=1e-9)

    def test_moments(self, beta):
        d, s = GenNorm(beta, 1.7), scipy.stats.gennorm(beta, scale=1.7)
        assert d.variance == pytest.approx(s.var(), rel=1e-10)
        assert d.std == pytest.approx(s.std(), rel=1e-10)
        assert d.excess_kurtosis == pytest.approx(float(s.stats("k")), rel=1e-9)
        assert d.entropy == pytest.approx(float(s.entropy()), rel=1e-10)
        assert d.entropy_bits == pytest.approx(d.entropy / math.log(2))
        assert GenNorm.with_std(beta, 3.0).std == pytest.approx(3.0, rel=1e-12)

    def test_cell_moments_add_up_and_agree_with_quadrature(self, beta):
        d = GenNorm(beta, 1.7, mu=0.4)
        distances = [0.0, 0.5, 4.6, np.inf]
        for p in (0, 1, 2, 3.5):
            assert 2 * d.cell_moments(p, distances).sum() == pytest.approx(d.abs_moment(p), rel=1e-10)
        x, dx = np.linspace(0.9, 5.0, 200_001, retstep=True)
        f = (x - 0.4) ** 3 * d.pdf(x)
        trapezoid = float((f.sum() - (f[0] + f[-1]) / 2) * dx)
        assert float(d.cell_moments(3, distances)[1]) == pytest.approx(trapezoid, rel=1e-8)

    def test_sample(self, beta):
        d = GenNorm(beta, 1.7, mu=0.4)
        x = d.sample(20_000, seed=3)
        assert np.array_equal(x, d.sample(20_000, seed=3))
        assert scipy.stats.kstest(x, d.cdf).pvalue > 1e-3


def test_named_members():
    x = np.linspace(-3, 3, 25)
    np.testing.assert_allclose(GenNorm.normal(0.3, 2.0).pdf(x), scipy.stats.norm(0.3, 2.0).pdf(x), rtol=1e-12)
    np.testing.assert_allclose(GenNorm.laplace(0.3, 2.0).pdf(x), scipy.stats.laplace(0.3, 2.0).pdf(x), rtol=1e-12)
    for bad in ((0, 1), (1, 0), (1, math.inf), (math.nan, 1)):
        with pytest.raises(ValueError, match="GenNorm needs"):
            GenNorm(*bad)


class TestFit:
    @pytest.mark.parametrize("method", ["moments", "mle"])
    @pytest.mark.parametrize("beta", [0.3, 0.5, 1.0, 1.6, 2.0, 3.0])
    def test_a_million_values(self, beta, method):
        x = GenNorm(beta, 1e-3).sample(1_000_000, seed=11).astype(np.float32)
        f = fit(x, method)
        assert f.dist.beta == pytest.approx(beta, rel=0.01)
        assert f.dist.alpha == pytest.approx(1e-3, rel=0.01 if beta > 0.4 else 0.05)
        assert (f.n, f.zero_mass, f.method) == (1_000_000, 0.0, method)

    @pytest.mark.parametrize("method", ["moments", "mle"])
    def test_a_quarter_exact_zeros(self, method):
        x = GenNorm(0.8, 2.0).sample(400_000, seed=5).astype(np.float32)
        x[::4] = 0
        f = fit(x, method)
        assert f.zero_mass == 0.25
        assert f.dist.beta == pytest.approx(0.8, rel=0.02)
        assert f.dist.alpha == pytest.approx(2.0, rel=0.03)
        assert fit(x, method, zero_mass=False).dist.beta < 0.7  # zeros taken for a sharper peak
        assert fit(x, method, zero_mass=False).zero_mass == 0

    def test_likelihood_agrees_with_scipy(self):
        x = GenNorm(0.7, 0.02).sample(20_000, seed=2).astype(np.float32)
        beta, _, alpha = scipy.stats.gennorm.fit(x.astype(np.float64), floc=0)
        f = fit(x, "mle")
        assert f.dist.beta == pytest.approx(beta, rel=2e-3)  # binning blurs what little 20 000 values tell
        assert f.dist.alpha == pytest.approx(alpha, rel=4e-3)

    @pytest.mark.parametrize("method", ["moments", "mle"])
    def test_around_the_mean(self, method):
        x = GenNorm(1.3, 0.5, mu=0.7).sample(300_000, seed=8).astype(np.float32)
        f = fit(x, method, mu="mean")
        assert f.dist.mu == pytest.approx(0.7, abs=0.005)
        assert f.dist.beta == pytest.approx(1.3, rel=0.02)
        x[::4] = 0
        f = fit(x, method, mu="mean")
        assert (f.zero_mass, round(f.dist.mu, 2), round(f.dist.beta, 1)) == (0.25, 0.7, 1.3)

    @pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e20, 1e35])
    @pytest.mark.parametrize("method", ["moments", "mle"])
    def test_extreme_scales(self, method, scale):
        x = (GenNorm(1.0, 1.0).sample(50_000, seed=4) * scale).astype(np.float32)
        assert fit(x, method).dist.beta == pytest.approx(1.0, rel=0.05)

    def test_statistics_give_the_same_fit(self):
        x = GenNorm(0.6, 1.0).sample(10_000, seed=6).astype(np.float32)
        hist = np.zeros(2048, np.uint64)
        total, sum_abs, sum_sq, _, n_zero = K.moments(x, hist)
        assert fit_stats(total, sum_abs, sum_sq, x.size, n_zero) == fit(x)
        assert fit_stats(total, sum_abs, sum_sq, x.size, n_zero, hist) == fit(x, "mle")

    def test_edges(self):
        assert fit([1.0, -1.0, 1.0]).dist.beta == pytest.approx(10)  # nothing is flatter
        assert fit([1.0, -1.0, 1.0], "mle").dist.beta == pytest.approx(10)
        assert fit([3.0]).dist.std == pytest.approx(3.0)
        for empty in ([], [0.0, 0.0]):
            with pytest.raises(ValueError, match="no distribution"):
                fit(empty)
        for bad in (np.nan, np.inf):
            for method in ("moments", "mle"):
                with pytest.raises(NonFiniteError):
                    fit([1.0, bad], method)
        with pytest.raises(ValueError, match="method"):
            fit([1.0], "guess")

    def test_ratio_table(self):
        beta = np.geomspace(0.1, 10, 777)
        got = np.array([beta_of_ratio(float(r)) for r in ratio_of_beta(beta)])
        assert np.max(np.abs(got - beta)) < 1e-6

    def test_normal_and_laplace(self):
        x = np.random.default_rng(1).normal(0.5, 2.0, 100_000).astype(np.float32)
        d = fit_normal(x)
        assert (d.beta, d.mu) == (2.0, pytest.approx(float(x.mean()), rel=1e-5))
        assert d.std == pytest.approx(float(x.std()), rel=1e-5)
        d = fit_laplace(x)
        assert d.alpha == pytest.approx(float(np.abs(x - x.mean()).mean()), rel=1e-5)


class TestDistance:
    def test_w1_agrees_with_scipy(self):
        x = GenNorm(0.8, 1.0).sample(2_000, seed=3)
        d = GenNorm.normal(0.1, 1.2)
        fine = d.ppf((np.arange(50_000) + 0.5) / 50_000)
        assert wasserstein(x, d) == pytest.approx(scipy.stats.wasserstein_distance(x, fine), rel=1e-3)

    @pytest.mark.parametrize("p", [1, 2])
    def test_closed_forms(self, p):
        d = GenNorm.normal(0, 1)
        assert wasserstein(d.ppf((np.arange(20_000) + 0.5) / 20_000) + 3, d, p) == pytest.approx(3, rel=1e-6)
        # A point mass at the centre: W_p^p = E|X|^p.
        assert wasserstein([0.0], d, p) == pytest.approx(d.abs_moment(p) ** (1 / p), rel=2e-3)

    def test_the_right_family_is_nearest(self):
        x = GenNorm(0.6, 1.0).sample(100_000, seed=9).astype(np.float32)
        gennorm, laplace, normal = fit_function(x).dist, fit_laplace(x), fit_normal(x)
        for p in (1, 2):
            assert wasserstein(x, gennorm, p) < wasserstein(x, laplace, p) < wasserstein(x, normal, p)

    def test_subsample(self):
        x = GenNorm.laplace().sample(200_000, seed=1)
        d = GenNorm.laplace()
        assert wasserstein(x, d, subsample=20_000) == wasserstein(x, d, subsample=20_000)
        assert wasserstein(x, d, subsample=20_000) < 0.05
        assert wasserstein(x, d, subsample=None) == wasserstein(x, d)

    def test_bad_input(self):
        with pytest.raises(ValueError, match="empty"):
            wasserstein([], GenNorm.normal())
        with pytest.raises(ValueError, match="1 or 2"):
            wasserstein([1.0], GenNorm.normal(), p=3)
        with pytest.raises(ValueError, match="constant"):
            kurtosis([2.0, 2.0])

    def test_kurtosis(self):
        x = GenNorm.laplace(5.0).sample(300_000, seed=1).astype(np.float32)
        assert kurtosis(x) == pytest.approx(float(scipy.stats.kurtosis(x.astype(np.float64))), rel=1e-9)


def cost(frequencies: np.ndarray, probabilities: np.ndarray) -> tuple[float, float]:
    """Bits per symbol with the table, and the entropy."""
    p = probabilities[probabilities > 0]
    return float(-p @ np.log2(frequencies[probabilities > 0] / frequencies.sum())), float(-p @ np.log2(p))


class TestPriors:
    @pytest.mark.parametrize("index", range(0, len(BETAS), 8))
    def test_cost_of_lloyd_and_uniform_quantizers(self, index):
        d = GenNorm.with_std(float(BETAS[index]))
        sets = [(table_levels(index, 0, b)[1:] + table_levels(index, 0, b)[:-1]) / 2 for b in (2, 3, 4, 5)]
        sets += [np.float32(step) * (np.arange(-7, 8, dtype=np.float32) + np.float32(0.5)) for step in (0.3, 1.0)]
        for t in sets:
            p = np.diff(np.concatenate([[0.0], d.cdf(t.astype(np.float64)), [1.0]]))
            f = interval_table(index, t)
            assert f.sum() == 1 << 14
            assert f.min() >= 1
            assert f.size == t.size + 1
            got, ideal = cost(f, p)
            assert got <= 1.001 * ideal

    def test_masses_against_scipy(self):
        t = np.float32([-3, -1, -0.25, 0, 1e-3, 0.5, 2, 9])
        for index in (0, 16, 32, 48, 64):
            s = GenNorm.with_std(float(BETAS[index]))
            want = np.diff(np.concatenate([[0.0], s.cdf(t.astype(np.float64)), [1.0]]))
            np.testing.assert_allclose(interval_masses(index, t) / 2**32, want, rtol=2e-3, atol=2e-7)

    def test_known_tables_never_change(self):
        t = np.float32([-2, -1, -0.5, 0.5, 1, 2])
        assert interval_table(16, t).tolist() == KNOWN[16]
        assert interval_table(48, t).tolist() == KNOWN[48]

    def test_thresholds(self):
        assert interval_table(32, np.float32([])).tolist() == [1 << 14]
        assert interval_table(32, np.float32([-np.inf, 0, 1e30, np.inf]), bits=8).tolist() == [1, 127, 126, 1, 1]
        for bad in ([1, 0], [np.nan]):
            with pytest.raises(ValueError, match="ascending"):
                interval_table(32, np.float32(bad))
        for index in (-1, 65):
            with pytest.raises(ValueError, match="shape index"):
                interval_table(index, np.float32([0]))

    def test_normalise(self):
        rng = np.random.default_rng(0)
        for size in (1, 2, 3, 100, 256):
            for power in (1, 4, 12):
                mass = (rng.random(size) ** power * 2**32).astype(np.int64) + (size == 1)
                f = normalise(mass, 12)
                assert f.sum() == 4096
                assert f.min() >= 1
                assert np.all(np.diff(f[np.argsort(mass, kind="stable")].astype(int)) >= -1)
        for bad in ([], [0, 0], [-1, 2], np.ones(300, int)):
            with pytest.raises(ValueError, match="cannot share"):
                normalise(bad, 8)

    def test_shape_grid(self):
        assert [nearest_beta_index(float(b)) for b in BETAS] == list(range(65))
        assert (nearest_beta_index(1e-3), nearest_beta_index(99.0)) == (0, 64)


KNOWN = {16: [432, 858, 1345, 11114, 1345, 858, 432], 48: [373, 2226, 2456, 6274, 2456, 2226, 373]}
