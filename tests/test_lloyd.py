"""The magnitude-weighted Lloyd quantizer: published numbers, Lloyd's condition, optimality, the shipped table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from perbit.gennorm import BETAS, design, lloyd, table_levels
from perbit_papers.uniform import UniformSource, design_uniform


@pytest.mark.parametrize(
    ("beta", "m", "bits", "half"),
    [
        (1.0, 2, 2, [1.4717, 3.6027]),
        (0.5, 2, 2, [2.5896, 9.0657]),
        (1.0, 4, 3, [1.9179, 3.3057, 4.8354, 7.0494]),
        (1.0, 0, 2, [0.4198, 1.8340]),
        (2.0, 0, 2, [0.4528, 1.5104]),  # Max (1960)
        (2.0, 0, 3, [0.2451, 0.7560, 1.3439, 2.1520]),
    ],
)
def test_known_levels(beta, m, bits, half):
    levels = design(beta, m, bits)
    assert levels[len(half) :] == pytest.approx(half, abs=1e-4)
    assert np.array_equal(levels, -levels[::-1])


@pytest.mark.parametrize("beta", [0.25, 0.6, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("m", [0.0, 0.5, 2.7, 8.0])
@pytest.mark.parametrize("bits", [1, 2, 4, 7, 8])
def test_lloyds_condition(beta, m, bits):
    levels = design(beta, m, bits)
    assert np.all(np.diff(levels) > 0)
    assert lloyd.violation(lloyd.GenNormSource(beta), m, levels[levels > 0]) < 1e-9


def test_centroids_by_independent_quadrature():
    half = design(0.7, 3, 3)[4:]
    p = stats.gennorm(0.7, scale=1 / stats.gennorm(0.7).std()).pdf
    edges = [0, *(half[1:] + half[:-1]) / 2, 200.0]
    for c, lo, hi in zip(half, edges, edges[1:], strict=False):
        mass = integrate.quad(lambda x: x**3 * p(x), lo, hi, epsabs=0, epsrel=1e-10, limit=200)[0]
        first = integrate.quad(lambda x: x**4 * p(x), lo, hi, epsabs=0, epsrel=1e-10, limit=200)[0]
        assert c == pytest.approx(first / mass, rel=1e-7)


@pytest.mark.parametrize(("beta", "m"), [(0.25, 0), (0.25, 8), (0.4, 2), (2.0, 4)])
def test_other_starts_find_nothing_better(beta, m):
    source, n = lloyd.GenNormSource(beta), 4
    best = design(beta, m, 3)[n:]

    def distortion(c):
        edges = lloyd.edges_of(c)
        m0, m1, m2 = (source.moments(m + k, edges) for k in range(3))
        return float(np.sum(m2 - 2 * c * m1 + c * c * m0))

    rng = np.random.default_rng(7)
    for _ in range(3):
        c = np.sort(best * np.exp(rng.normal(0, 0.7, n)))
        for _ in range(100):
            c = lloyd.centroids(source, m, c)
        assert distortion(c) >= distortion(best) * (1 - 1e-9)


def test_uniform_source():
    for bits in (1, 3, 5):
        n = 1 << bits
        assert design_uniform(0, bits) / 3**0.5 == pytest.approx((2 * np.arange(n) + 1 - n) / n, abs=1e-9)
    smallest = [design_uniform(m, 2)[2] for m in (0, 1, 2, 4, 8)]
    assert np.all(np.diff(smallest) > 0)  # a larger m moves every level outwards
    assert lloyd.violation(UniformSource(), 2.5, design_uniform(2.5, 6)[32:]) < 1e-9


def test_bad_parameters():
    for bad in ((1.0, -1, 2), (1.0, 2, 0), (1.0, 2, 9), (0.01, 2, 2)):
        with pytest.raises(ValueError):
            design(*bad)
    for bad in ((-1, 2, 2), (65, 2, 2), (3, 9, 2), (3, 2, 9), (3, 2, 0)):
        with pytest.raises(ValueError):
            table_levels(*bad)


def test_the_whole_shipped_table():
    worst = 0.0
    for i, beta in enumerate(BETAS):
        source = lloyd.GenNormSource(float(beta))
        for m in range(9):
            tables = [table_levels(i, m, bits) for bits in range(1, 9)]
            for bits, levels in enumerate(tables, start=1):
                assert levels.dtype == np.float32
                assert levels.size == 1 << bits
                assert np.all(np.diff(levels) > 0)
                assert np.array_equal(levels, -levels[::-1])
            halves = [levels[levels.size // 2 :].astype(np.float64) for levels in tables]
            edges = np.concatenate([lloyd.edges_of(half) for half in halves])  # all codebooks in one evaluation
            with np.errstate(divide="ignore", invalid="ignore"):
                centroids = source.moments(m + 1, edges) / source.moments(m, edges)
            centroids = centroids[np.isfinite(edges[:-1])]  # what lies between two codebooks is no cell
            half = np.concatenate(halves)
            worst = max(worst, float(np.max(np.abs(half - centroids) / np.maximum(1, half))))
    assert worst < 1e-6


def test_the_shipped_file_is_small():
    file = Path(lloyd.__file__).parent / "tables" / "gennorm.npz"
    assert file.stat().st_size < 1_500_000
