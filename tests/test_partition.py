"""Partitions: every sample exactly once, nobody empty, the same for a seed, and skewed as much as asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perbit.sim.data import Split
from perbit.sim.partition import PartitionError, Parts, dirichlet, iid, natural, partition, shards

N_CLASSES = 10


def split(n: int = 2000, n_groups: int = 40, seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    return Split(np.zeros((n, 1)), rng.integers(0, N_CLASSES, n), rng.integers(0, n_groups, n))


def assert_complete(parts: Parts, n: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def class_shares(parts: Parts, y: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(y[part], minlength=N_CLASSES) / len(part) for part in parts])


def skew(parts: Parts, y: np.ndarray) -> float:
    """The mean total variation between a client's classes and everyone's."""
    everyone = np.bincount(y, minlength=N_CLASSES) / len(y)
    return float(np.abs(class_shares(parts, y) - everyone).sum(axis=1).mean() / 2)


@given(
    st.sampled_from(["iid", "dirichlet(0.1)", "dirichlet(100)", "shards(2)", "natural"]),
    st.integers(1, 30),
    st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_every_sample_exactly_once_and_nobody_empty(kind: str, n_clients: int, seed: int) -> None:
    data = split(600)
    parts = partition(kind, data, n_clients, seed)
    assert len(parts) == n_clients
    assert_complete(parts, len(data))
    assert min(map(len, parts)) >= 1


@pytest.mark.parametrize("kind", ["iid", "dirichlet(0.5)", "shards(2)", "natural"])
def test_the_seed_decides(kind: str) -> None:
    one, same, other = (partition(kind, split(), 7, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_iid_parts_are_equal_and_alike() -> None:
    parts = iid(split(20_000), 10)
    assert {len(part) for part in parts} == {2000}
    assert skew(parts, split(20_000).y) < 0.04


def test_dirichlet_skew_falls_with_alpha_as_theory_says() -> None:
    data = split(20_000)
    skews = {alpha: skew(dirichlet(data, 20, alpha), data.y) for alpha in (0.05, 0.5, 5.0, 500.0)}
    assert skews[0.05] > 0.6 > skews[0.5] > 0.3 > skews[5.0] > 0.08 > skews[500.0]


def test_dirichlet_proportions_have_the_right_variance() -> None:
    """A client's share of a class is Beta(alpha, (n-1) alpha): mean 1/n, variance (n-1) / (n² (n alpha + 1))."""
    data, n, alpha = split(5000), 5, 1.0
    shares = np.concatenate(
        [[np.mean([data.y[i] == c for i in part]) * len(part) / np.sum(data.y == c) for part in dirichlet(data, n, alpha, seed)]
         for seed in range(40) for c in (0,)]
    )  # fmt: skip
    assert abs(shares.mean() - 1 / n) < 1e-9
    assert abs(shares.var() - (n - 1) / (n**2 * (n * alpha + 1))) < 0.008


@pytest.mark.parametrize("minimum", [1, 10, 50])
def test_dirichlet_keeps_the_minimum(minimum: int) -> None:
    for seed in range(5):
        parts = dirichlet(split(1000), 20, 0.01, seed, minimum)
        assert min(map(len, parts)) >= minimum
        assert_complete(parts, 1000)


def test_shards_give_few_classes() -> None:
    parts = shards(split(20_000), 10, per_client=2)
    assert max(int((row > 0.02).sum()) for row in class_shares(parts, split(20_000).y)) <= 4
    assert max(map(len, parts)) - min(map(len, parts)) <= 2


def test_natural_keeps_people_whole() -> None:
    data = split()
    assert data.group is not None
    parts = natural(data)
    assert len(parts) == 40
    assert all(len(np.unique(data.group[part])) == 1 for part in parts)
    few = natural(data, 6)
    owners = [set(data.group[part].tolist()) for part in few]
    assert sum(map(len, owners)) == 40
    assert max(map(len, few)) < 1.3 * min(map(len, few))


@pytest.mark.parametrize(
    ("kind", "n_clients", "sentence"),
    [
        ("dirichlet(0)", 3, "alpha above 0"),
        ("dirichlet(x)", 3, "cannot read the partition"),
        ("random", 3, "iid, dirichlet"),
        ("iid", 0, "at least one client"),
        ("iid", 5000, "too few"),
        ("iid", None, "number of clients"),
        ("shards(0)", 3, "at least one sample or shard"),
        ("natural", 41, "40 people"),
    ],
)
def test_mistakes_are_one_sentence(kind: str, n_clients: int | None, sentence: str) -> None:
    with pytest.raises(PartitionError, match=sentence):
        partition(kind, split(), n_clients)


def test_data_without_groups_or_labels_say_so() -> None:
    with pytest.raises(PartitionError, match="no natural groups"):
        natural(Split(np.zeros((4, 1)), np.zeros(4, int)))
    with pytest.raises(PartitionError, match="no single label"):
        shards(Split(np.zeros((4, 8)), np.zeros((4, 8), int)), 2)
