"""Bloom filters: MurmurHash3, the rate the formula promises, both ends choosing alike, and filters made to harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perbit
from perbit import kernels
from perbit.coding.families.bloom import Bloom
from perbit.kernels import K
from perbit.kernels.api import U32
from perbit.kernels.reference.bloom import murmur3
from perbit_papers.bloom import expected_fpr

LAYOUTS = ["standard", "blocked"]
RULES = ["rounded", "ceiling", "density"]
NATIVE = [name for name in kernels.available() if name != "numpy"]


def positions_of(n: int, k: int, seed: int = 0) -> U32:
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False)).astype(np.uint32)


def test_murmur3_gives_the_published_hashes() -> None:
    def hash_of(word: int, seed: int) -> int:
        return int(murmur3(np.array([word], np.uint32), seed)[0])

    assert hash_of(0, 0) == 0x2362F9DE
    assert hash_of(0xFFFFFFFF, 0) == 0x76293B50
    assert hash_of(0x87654321, 0) == 0xF55B516B
    assert hash_of(0x87654321, 0x5082EDEE) == 0x2362F9DE


def test_a_filter_by_hand() -> None:
    # One position, one hash, eight bytes: bit (hash·64 >> 32) of the filter.
    bit = 0x2362F9DE * 64 >> 32
    assert K.bloom_build(np.array([0], np.uint32), 8, 1, 0, False) == (1 << bit).to_bytes(8, "little")
    # Blocked, two blocks of one word: hash(seed) chooses the word, hash(seed + 1)·salt the bit.
    first, second = (int(murmur3(np.array([0], np.uint32), seed)[0]) for seed in (0, 1))
    bit = (first * 2 >> 32) * 32 + ((second * 0x47B6137B & 0xFFFFFFFF) >> 27)
    assert K.bloom_build(np.array([0], np.uint32), 8, 1, 0, True) == (1 << bit).to_bytes(8, "little")


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("hashes", [1, 3, 8])
def test_back_ends_agree(blocked: bool, hashes: int) -> None:
    for n, k, n_bytes in ((1, 1, 8), (63, 5, 8), (5003, 200, 96), (20_001, 900, 960)):
        n_bytes = n_bytes // (4 * hashes) * 4 * hashes or 4 * hashes
        positions, seed = positions_of(n, k), 0xFFFFFFFF - hashes
        results = set()
        for name in kernels.available():
            with kernels.using(name):
                data = K.bloom_build(positions, n_bytes, hashes, seed, blocked)
                accepted = K.bloom_query(data, n, hashes, seed, blocked, n)
                chosen = [K.bloom_resolve(accepted, n_bytes, hashes, seed, blocked, k, skip) for skip in (False, True)]
                results.add((data, accepted.tobytes(), *(one.tobytes() for one in chosen)))
                assert np.isin(positions, accepted).all()
                assert all(np.all(np.diff(one.astype(np.int64)) > 0) for one in chosen)
        assert len(results) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fpr", [0.6, 0.1, 0.01, 0.001])
def test_the_measured_rate_is_the_formula(layout: str, fpr: float) -> None:
    n, k = 2_000_000, 20_000
    filter_ = Bloom("p0", fpr, layout)
    rates = []
    for seed in range(4):
        positions = positions_of(n, k, seed)
        _, found = filter_.transmit(positions, n, key=seed)
        rates.append((found.size - k) / (n - k))
    assert abs(np.mean(rates) / expected_fpr(filter_, k) - 1) < 0.05
    assert expected_fpr(filter_, k) <= fpr * 1.03


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spec", ["topk(0.01, positions={})", "threshold(4.0, positions={})"])
def test_p0_is_exact(layout: str, spec: str) -> None:
    x = np.random.default_rng(1).laplace(size=50_000).astype(np.float32)
    bloom = f'bloom("p0", 0.01, layout="{layout}")'
    kept = perbit.decode(perbit.encode(x, spec.format("golomb")))
    value = perbit.decode(perbit.encode(x, spec.format(bloom), seed=3))
    assert np.array_equal(value[kept != 0], kept[kept != 0])
    assert np.array_equal(value[value != 0], x[value != 0])  # false positives carry their true values as well
    assert perbit.codec(spec.format(bloom)).omega(x.size) == perbit.codec(spec.format("golomb")).omega(x.size)
    sparse = kept
    assert np.array_equal(perbit.decode(perbit.encode(sparse, f"nonzero(positions={bloom})")), sparse)


@pytest.mark.parametrize("policy", ["p1", "p2", "p2_authors"])
def test_both_ends_select_the_same_set(policy: str) -> None:
    """10 000 cases over sizes, densities, rates, layouts and back ends: the decoder finds what the encoder announced."""
    rng = np.random.default_rng(7)
    for case in range(10_000):
        n = int(rng.integers(1, 400))
        chosen = np.flatnonzero(rng.random(n) < rng.choice([0.01, 0.1, 0.5])).astype(np.uint32)
        coder = Bloom(policy, float(rng.choice([0.6, 0.3, 0.05, 0.001])), LAYOUTS[case % 2], RULES[case % 3])
        with kernels.using(NATIVE[case % len(NATIVE)] if NATIVE else "numpy"):
            data, announced = coder.transmit(chosen, n, case)
        with kernels.using(NATIVE[-1] if NATIVE and case % 50 else "numpy"):
            found = coder.decode(data, n, chosen.size)
        assert found.size == chosen.size
        assert np.array_equal(found, announced)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fpr", [0.3, 0.05, 0.01])
def test_p2_finds_more_true_positions_than_p1(layout: str, fpr: float) -> None:
    n, k = 40_000, 2000
    positions = positions_of(n, k)
    share = {}
    for policy in ("p1", "p2", "p2_authors"):
        found = [Bloom(policy, fpr, layout).transmit(positions, n, key)[1] for key in range(3)]
        share[policy] = np.mean([np.isin(f, positions).mean() for f in found])
    assert share["p2_authors"] > share["p2"] > share["p1"]


@pytest.mark.parametrize(("density", "fpr", "least"), [(0.01, 0.01, 0.81), (0.001, 0.001, 0.88), (0.1, 0.3, 0.335)])
def test_the_authors_p2_finds_as_many_true_positions_as_their_code(density: float, fpr: float, least: float) -> None:
    n, shares = 400_000, []
    coder = Bloom("p2_authors", fpr)
    for seed in range(10):
        positions = positions_of(n, round(density * n), seed)
        shares.append(np.isin(coder.transmit(positions, n, seed)[1], positions, assume_unique=True).mean())
    assert np.mean(shares) >= least


@pytest.mark.parametrize("skip", [False, True])
def test_p2_takes_what_a_bit_speaks_for_alone(skip: bool) -> None:
    n, positions = 3000, positions_of(3000, 60)
    coder = Bloom("p2", 0.05)
    data = K.bloom_build(positions, coder.filter_bytes(60), coder.hashes, 9, False)
    accepted = K.bloom_query(data, n, coder.hashes, 9, False, n)
    bits = [
        {int(murmur3(np.array([x], np.uint32), 9 + i)[0]) * 8 * len(data) >> 32 for i in range(4)} for x in accepted
    ]
    counts: dict[int, int] = {}
    for own in bits:
        for bit in own:
            counts[bit] = counts.get(bit, 0) + 1
    alone = {int(x) for x, own in zip(accepted, bits, strict=True) if any(counts[bit] == 1 for bit in own)}
    chosen = set(K.bloom_resolve(accepted, len(data), coder.hashes, 9, False, 60, skip).tolist())
    assert coder.hashes == 4
    assert alone <= set(positions.tolist())
    assert alone <= chosen


def test_naive_is_the_warning_it_should_be() -> None:
    x = np.random.default_rng(1).laplace(size=20_000).astype(np.float32)
    kept = perbit.decode(perbit.encode(x, "topk(0.01)"))
    error = {}
    for policy in ("p0", "p1", "p2", "p2_authors", "naive"):
        value = perbit.decode(perbit.encode(x, f'topk(0.01, positions=bloom("{policy}", 0.01))', seed=0))
        error[policy] = float(((value - x) ** 2).sum())
    exact = float(((kept - x) ** 2).sum())
    assert error["p0"] <= exact < error["p2_authors"] < error["p2"] < error["p1"] < error["naive"]


def test_the_rule_says_how_many_hashes() -> None:
    assert [Bloom("p0", 0.1, rule=rule).hashes for rule in ("rounded", "ceiling")] == [3, 4]
    assert [Bloom("p0", 0.01, rule=rule).hashes for rule in ("rounded", "ceiling")] == [7, 7]
    density = Bloom("p0", 0.1, rule="density")
    assert (density.at(1000, 100_000).fpr, density.at(1000, 100_000).hashes) == (0.001, 10)
    positions = positions_of(100_000, 1000)
    section, found = density.transmit(positions, 100_000, 3)
    assert section[4] == 10
    assert len(section) == 5 + Bloom("p0", 0.001).filter_bytes(1000)
    assert np.array_equal(density.decode(section, 100_000, found.size), found)
    for hashes in (0, 33, 255):
        with pytest.raises(perbit.DecodeError):
            density.decode(section[:4] + bytes([hashes]) + section[5:], 100_000, found.size)


def test_parameters_are_checked() -> None:
    for bad in (
        'bloom("p3")',
        "bloom(fpr=1.0)",
        "bloom(fpr=0.0)",
        'bloom(layout="round")',
        "bloom(fpr=1e-12)",
        'bloom(rule="floor")',
    ):
        with pytest.raises(perbit.SpecError):
            perbit.codec(f"topk(0.1, positions={bad})")


def frame_with(section: bytes, count: int, n: int, bloom: str, length: int | None = None) -> bytes:
    """A frame whose filter says what an attacker wants."""
    from perbit.coding.bits import varint
    from perbit.frame.wirespec import write_spec

    spec = write_spec(perbit.codec(f"topk(0.5, positions={bloom})"))
    head = b"pbit" + bytes([1, 0, 0, 1]) + varint(n) + spec
    positions = varint(len(section) if length is None else length) + section
    body = head + varint(count) + positions + varint(4 * count) + bytes(4 * min(count, 100))
    return body + K.crc32c(body).to_bytes(4, "little")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policy", ["p0", "p1", "p2", "p2_authors", "naive"])
def test_hostile_filters_are_refused(policy: str, rule: str) -> None:
    head = b"seed" + (b"\x0a" if rule == "density" else b"")
    full, empty = head + b"\xff" * 40, head + bytes(40)
    attacks: dict[str, tuple[bytes, int, int, int | None]] = {
        "claims 2^40 bits": (full, 10, 1000, 1 << 37),
        "accepts nothing": (empty, 10, 1000, None),
        "no filter": (head, 10, 1000, None),
        "a filter for nothing": (full, 0, 1000, None),
        "more positions than values": (full, 1001, 1000, None),
    }
    if policy == "p0":
        attacks["accepts more than it says"] = (full, 999, 1000, None)
    if policy in ("p2", "p2_authors"):
        attacks["sets beyond any bound"] = (full, 1000, 1_000_000, None)
    if rule == "density":
        attacks["no hashes"] = (b"seed\x00" + b"\xff" * 40, 1000, 1000, None)
        attacks["too many hashes"] = (b"seed\xff" + b"\xff" * 40, 1000, 1000, None)
    bloom = f'bloom("{policy}", rule="{rule}")'
    for name, (section, count, n, length) in attacks.items():
        with pytest.raises(perbit.DecodeError):
            pytest.fail(f"{name}: {perbit.decode(frame_with(section, count, n, bloom, length))}")


def test_kernels_refuse_impossible_filters() -> None:
    some = np.array([1], np.uint32)
    calls: list[Any] = [
        lambda: K.bloom_build(some, 1 << 29, 3, 0, False),
        lambda: K.bloom_build(some, 0, 3, 0, False),
        lambda: K.bloom_build(some, 8, 0, 0, False),
        lambda: K.bloom_build(some, 8, 33, 0, False),
        lambda: K.bloom_build(some, 36, 9, 0, True),
        lambda: K.bloom_build(some, 10, 2, 0, True),
        lambda: K.bloom_query(b"\xff" * 8, 100, 3, 0, False, 99),
        lambda: K.bloom_query(b"\xff" * 8, (1 << 32) + 1, 3, 0, False, 9),
        lambda: K.bloom_resolve(some, 8, 1, 0, False, 2, True),
    ]
    for name in kernels.available():
        with kernels.using(name):
            for call in calls:
                with pytest.raises(ValueError):
                    call()
