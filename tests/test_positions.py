"""Position coders: sizes against log2 C(n, k), hand-worked bytes, equal back ends, hostile streams."""

from __future__ import annotations

from collections.abc import Callable
from math import lgamma, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perbit
from attacks.build import section
from perbit import kernels
from perbit.coding.bits import varint
from perbit.coding.codec import PositionCodec
from perbit.coding.spec import parse
from perbit.kernels import K
from perbit.kernels.api import U32

LOSSLESS = ["raw32", "bitmap", "rle", "huffgaps", "golomb", "gaps", "eliasfano", "counted", "auto"]


def coder(name: str) -> PositionCodec:
    found = parse(name)
    assert isinstance(found, PositionCodec)
    return found


def uniform(n: int, k: int, seed: int = 0) -> U32:
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False)).astype(np.uint32)


def clustered(n: int, seed: int = 0) -> U32:
    """Dense runs between deserts."""
    rng = np.random.default_rng(seed)
    density = np.repeat(rng.choice([0.0, 0.002, 0.4, 1.0], n // 64 + 1), 64)[:n]
    return np.flatnonzero(rng.random(n) < density).astype(np.uint32)


def log2_binomial(n: int, k: int) -> float:
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)


SETS: dict[str, tuple[int, U32]] = {
    "empty": (10, np.empty(0, np.uint32)),
    "first": (1, np.zeros(1, np.uint32)),
    "all": (1000, np.arange(1000, dtype=np.uint32)),
    "all but one": (1000, np.delete(np.arange(1000, dtype=np.uint32), 500)),
    "last": (100_000, np.array([99_999], np.uint32)),
    "ends": (70_000, np.array([0, 69_999], np.uint32)),
    "uniform": (5000, uniform(5000, 300)),
    "dense": (3000, uniform(3000, 2000)),
    "clustered": (20_000, clustered(20_000)),
}


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("positions", SETS, ids=str)
def test_round_trip_and_size(name: str, positions: str) -> None:
    n, chosen = SETS[positions]
    data = coder(name).encode(chosen, n)
    assert coder(name).n_bytes(chosen, n) == len(data)
    assert np.array_equal(coder(name).decode(data, n, chosen.size), chosen)


@pytest.mark.parametrize("name", ["rle", "huffgaps", "golomb", "gaps", "eliasfano", "counted", "auto"])
def test_the_largest_tensor(name: str) -> None:
    n = 1 << 32
    chosen = np.array([0, 1, 2, 1 << 20, n - 2, n - 1], np.uint32)
    assert np.array_equal(coder(name).decode(coder(name).encode(chosen, n), n, chosen.size), chosen)
    last = chosen[-1:]
    assert np.array_equal(coder(name).decode(coder(name).encode(last, n), n, 1), last)


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 400), max_size=60), st.sampled_from(LOSSLESS))
def test_any_small_set(chosen: set[int], name: str) -> None:
    positions = np.array(sorted(chosen), np.uint32)
    assert np.array_equal(coder(name).decode(coder(name).encode(positions, 401), 401, positions.size), positions)


@pytest.mark.parametrize(
    ("name", "ratio", "bound"),
    [("golomb", 0.01, 1.01), ("golomb", 0.1, 1.06), ("gaps", 0.01, 1.005), ("gaps", 0.1, 1.005), ("auto", 0.01, 1.005)],
)
def test_uniform_positions_cost_what_they_must(name: str, ratio: float, bound: float) -> None:
    n = 4_000_000
    positions = uniform(n, int(n * ratio))
    assert 8 * len(coder(name).encode(positions, n)) <= bound * log2_binomial(n, positions.size)


def test_chunks_with_known_counts_cost_what_they_must() -> None:
    x = np.random.default_rng(2).standard_normal(100 * 4096 + 1000, np.float32)
    frame = perbit.encode(x, "topk(k=64, chunk=4096)")
    sizes = {section["name"]: section["n_bytes"] for section in perbit.inspect(frame)["sections"]}
    assert 8 * sizes["positions"] < 1.0005 * (100 * log2_binomial(4096, 64) + log2_binomial(1000, 16)) + 32
    assert 8 * sizes["positions"] / (100 * 64 + 16) < 7.4
    found = perbit.decode(frame)
    assert [np.count_nonzero(found[lo : lo + 4096]) for lo in (0, 99 * 4096, 100 * 4096)] == [64, 64, 16]
    assert np.array_equal(found[:4096], perbit.decode(perbit.encode(x[:4096], "topk(k=64)")))


def test_clusters_cost_less() -> None:
    n = 300_000
    positions = clustered(n)
    bound = log2_binomial(n, positions.size)
    sizes = {name: 8 * len(coder(name).encode(positions, n)) / bound for name in LOSSLESS}
    assert sizes["gaps"] < 0.62
    assert sizes["rle"] < sizes["golomb"]
    assert sizes["huffgaps"] < sizes["golomb"]
    assert sizes["auto"] == min(sizes.values()) + 8 / bound


def test_streams_by_hand() -> None:
    some = np.array([0, 1, 2, 6, 7], np.uint32)
    # rle: two runs; 0 absent before the first, 3 before the second; 3 present at the end of the first, 5 of the second.
    absent = bytes([0]) + K.golomb_encode(np.array([0, 3], np.uint32), 0)  # 1 001: bits 1, 0 0 1
    present = bytes([0]) + K.golomb_encode(np.array([2, 4], np.uint32), 0)  # 001 01
    assert (absent, present) == (bytes([0, 0b1001]), bytes([0, 0b10100]))
    assert coder("rle").encode(some, 8) == bytes([2, 2]) + absent + present
    # Elias-Fano: 8 // 5 = 1, no low bits; position i sets bit position + i of 5 + 7 bits.
    assert coder("eliasfano").encode(some, 8) == bytes([0b00010101, 0b00001010])
    # ... and with 100 // 2 = 50, five low bits: 3 and 40 = 1·32 + 8; high parts 0 and 1 set bits 0 and 2 of 2 + 3.
    pair = np.array([3, 40], np.uint32)
    assert coder("eliasfano").encode(pair, 100) == (3 | 8 << 5).to_bytes(2, "little") + bytes([0b101])
    # gaps: one position of two. The probability that the first is absent is 1/2, learnt in no context yet: p = 1/2.
    # Present first: "does not go on" takes the upper half [2^31, 2^32): the end byte is (0x80) + 1 after no settled byte.
    assert coder("gaps").encode(np.array([0], np.uint32), 2) == bytes([0x81])
    # counted: 1 + 1 for one in each chunk. Both decisions are ones at p = 1/4: [0, 2^28 - 1], whose top bytes differ; low is 0.
    assert coder("counted(4)").encode(np.array([0, 4], np.uint32), 8) == bytes([2])
    assert coder("counted(4)").encode(np.array([0, 1, 2, 3], np.uint32), 4) == bytes([5])  # a full chunk needs no bits
    # auto: the number of the coder in front.
    assert coder("auto").encode(pair, 100) == bytes([33]) + coder("gaps").encode(pair, 100)


def test_huffgaps_by_hand() -> None:
    # Gaps 5, 5, 5: one symbol; no low bits, no skips, a section with mode 0 (constant) and the symbol.
    assert coder("huffgaps").encode(np.array([5, 11, 17], np.uint32), 20) == bytes([0, 0, 2, 0, 5])


@pytest.mark.parametrize("positions", SETS, ids=str)
def test_back_ends_agree(positions: str) -> None:
    n, chosen = SETS[positions]
    for call in (
        lambda: K.gaps_encode(chosen, n),
        lambda: K.eliasfano_encode(chosen, 3, n),
        lambda: K.eliasfano_encode(chosen, 0, n),
        lambda: K.eliasfano_encode(chosen, 11, n),
        lambda: K.counted_encode(chosen, counts_of(chosen, 256, n), 256, n),
    ):
        assert len(set(each_back_end(call))) == 1
    stream, low = K.gaps_encode(chosen, n), K.eliasfano_encode(chosen, 3, n)
    counts = counts_of(chosen, 256, n)
    counted = K.counted_encode(chosen, counts, 256, n)
    for name in kernels.available():
        with kernels.using(name):
            assert np.array_equal(K.gaps_decode(stream, chosen.size, n), chosen)
            assert np.array_equal(K.eliasfano_decode(low, chosen.size, 3, n), chosen)
            assert np.array_equal(K.counted_decode(counted, counts, 256, n), chosen)


def counts_of(positions: U32, chunk: int, n: int) -> U32:
    return np.bincount(positions // np.uint32(chunk), minlength=-(-n // chunk)).astype(np.uint32)


def test_back_ends_refuse_the_same_counts() -> None:
    some = np.array([3, 40], np.uint32)
    for positions, counts, chunk, n in (
        (some, [2, 0], 32, 64),  # one of them is in the second chunk
        (some[::-1].copy(), [1, 1], 32, 64),
        (some, [1, 2], 32, 64),
        (some, [1], 32, 64),
        (some, [1, 1], 32, 40),
        (some, [1, 1], 1 << 17, 64),
        (some, [33, 1], 32, 64),
        (some, [1, 1], 0, 64),
    ):
        each = np.array(counts, np.uint32)
        results = each_back_end(lambda case=(positions, each, chunk, n): K.counted_encode(*case))
        assert all(isinstance(result, str) for result in results)
        assert len(set(results)) == 1


def each_back_end(call: Callable[[], Any]) -> list[Any]:
    results = []
    for name in kernels.available():
        with kernels.using(name):
            try:
                results.append(call())
            except ValueError as error:
                results.append(str(error))
    return results


def test_back_ends_agree_on_damage() -> None:
    rng = np.random.default_rng(3)
    n, chosen = 900, uniform(900, 40)
    counts = counts_of(chosen, 256, n)
    streams = {
        "gaps": K.gaps_encode(chosen, n),
        "eliasfano": K.eliasfano_encode(chosen, 4, n),
        "counted": K.counted_encode(chosen, counts, 256, n),
    }
    for kind, stream in streams.items():
        for _ in range(60):
            bad = bytearray(stream)
            for _ in range(rng.integers(1, 4)):
                bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
            data = bytes(bad)[: len(bad) - int(rng.integers(0, 2))]

            def call(kind: str = kind, data: bytes = data) -> Any:
                if kind == "counted":
                    return K.counted_decode(data, counts, 256, n).tobytes()
                found = K.gaps_decode(data, 40, n) if kind == "gaps" else K.eliasfano_decode(data, 40, 4, n)
                return found.tobytes()

            results = each_back_end(call)
            assert len({type(result) for result in results}) == 1
            assert len({result for result in results if isinstance(result, bytes)}) <= 1


@pytest.mark.parametrize("name", LOSSLESS)
def test_hostile_streams_are_refused(name: str) -> None:
    n, chosen = 5000, uniform(5000, 120)
    data = coder(name).encode(chosen, n)
    damaged = [b"", data + b"\0", b"\xff" * len(data), b"\0" * len(data)]
    if name == "counted":  # wastes no bits: where the counts fit, any bytes stand for some set
        assert not np.array_equal(coder(name).decode(data[:-1], n, chosen.size), chosen)
    else:
        damaged.append(data[:-1])
    for bad in damaged:
        with pytest.raises((perbit.DecodeError, ValueError)):
            coder(name).decode(bad, n, chosen.size)
    for count in (0, chosen.size - 1, chosen.size + 1, n):
        with pytest.raises((perbit.DecodeError, ValueError)):
            coder(name).decode(data, n, count)


def test_named_attacks() -> None:
    def refused(name: str, data: bytes, n: int, count: int, match: str) -> None:
        with pytest.raises(perbit.DecodeError, match=match):
            coder(name).decode(data, n, count)

    # Gaps that overflow: a stream of ones says "go on" for ever.
    refused("gaps", b"\0" * 40, 1 << 32, 1000, "outside the tensor|ends early|wrong length")
    # Elias-Fano: no ones above, too many ones, low bits that go back.
    pair = coder("eliasfano").encode(np.array([3, 40], np.uint32), 100)
    refused("eliasfano", pair[:-1] + b"\0", 100, 2, "ends within")
    refused("eliasfano", pair[:-1] + bytes([0b111]), 100, 2, "behind its last position")
    refused("eliasfano", pair[:-1] + bytes([0b10001]), 100, 2, "outside")
    refused("eliasfano", (40 % 32 | 3 << 5).to_bytes(2, "little") + bytes([0b011]), 100, 2, "do not ascend")
    # Counts that are not those of the count, more in a chunk than it holds, counts that end early.
    refused("counted(10)", varint(3), 20, 3, "do not hold 3")
    refused("counted(10)", varint(12), 20, 22, "above the limit")
    refused("counted(10)", varint(2), 15, 12, "more positions than values")
    refused("counted(10)", varint(0) + section(b""), 20, 3, "do not hold 3|counted")
    refused("counted(10)", varint(0), 20, 3, "truncated")
    # rle: runs past the end, more present than there are.
    run = np.array([0, 1, 2, 6, 7], np.uint32)
    data = coder("rle").encode(run, 8)
    refused("rle", data, 7, 5, "outside")
    refused("rle", data, 9, 6, "do not hold")
    refused("rle", bytes([200, 1]) + data, 8, 5, "above the limit")
    # huffgaps: skips without end, low bits beyond the format.
    refused("huffgaps", bytes([0, 200, 200, 200, 1, 0]), 100, 5, "above the limit")
    refused("huffgaps", bytes([17, 0, 0]), 100, 5, "low bits")
    refused("huffgaps", bytes([0, 0, 3, 0, 0xFE, 1]), 100, 5, "outside")
    refused("huffgaps", bytes([0, 0, 3, 0, 0xFF, 1]), 100, 5, "expected 5 gaps")
    # auto: a coder that does not exist, auto within auto.
    refused("auto", bytes([99]), 10, 1, "number 99")
    refused("auto", bytes([35, 35, 35]), 10, 1, "number 35")
    refused("auto", b"", 10, 1, "no position coder")


def test_overlapping_positions_are_refused() -> None:
    frame = perbit.encode(np.ones(9, np.float32), "topk(k=2, positions=raw32)")
    at = frame.index(bytes([0, 0, 0, 0, 1, 0, 0, 0]))
    body = frame[:at] + bytes(8) + frame[at + 8 : -4]
    with pytest.raises(perbit.DecodeError, match="ascend"):
        perbit.decode(body + K.crc32c(body).to_bytes(4, "little"))


def test_sampled_top_k_is_top_k() -> None:
    rng = np.random.default_rng(0)
    for x in (rng.laplace(size=200_000), np.zeros(50_000), np.sort(rng.normal(size=70_000)), rng.normal(size=10)):
        values = x.astype(np.float32)
        for ratio in (0.001, 0.01, 0.5, 1.0):
            exact = perbit.decode(perbit.encode(values, f"topk({ratio})"))
            sampled = perbit.decode(perbit.encode(values, f'topk({ratio}, method="sampled")'))
            assert np.array_equal(exact, sampled)


def test_nonzero_is_exact() -> None:
    x = np.zeros((40, 50), np.float32)
    x[3], x[17, ::2] = 1.5, -1e-45
    assert np.array_equal(perbit.decode(perbit.encode(x, "nonzero")), x)
    assert perbit.codec("nonzero").unbiased
    assert not perbit.codec('nonzero(positions=bloom("p1"))').unbiased


def test_a_shared_seed_costs_nothing() -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    own, shared = (perbit.inspect(perbit.encode(x, spec, seed=5)) for spec in ("randk(0.1)", "randk(0.1, seed=7)"))
    assert [section["name"] for section in own["sections"]] == ["seed", "values"]
    assert [section["name"] for section in shared["sections"]] == ["values"]
    frames = [perbit.decode(perbit.encode(x, "randk(0.1, seed=7)", seed=seed)) for seed in (1, 2)]
    assert np.array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[0] != 0, perbit.decode(perbit.encode(x, "randk(0.1, seed=8)")) != 0)


def test_one_threshold_for_the_whole_model() -> None:
    rng = np.random.default_rng(0)
    tensors = {name: (rng.laplace(size=(100, 100)) * s).astype(np.float32) for name, s in (("a", 1), ("b", 10))}
    tensors["bias"] = np.ones(100, np.float32)
    tensors["dead"] = np.zeros((100, 100), np.float32)
    plan = perbit.Plan.of("topk(0.01) | fp16", whole_model=True)
    values = perbit.loads(perbit.dumps(tensors, plan))
    kept = {name: int(np.count_nonzero(value)) for name, value in values.items()}
    assert kept["bias"] == 100
    assert kept["a"] + kept["b"] == 300
    assert kept["b"] > 20 * kept["a"]
    everything = np.concatenate([np.abs(tensors[name]).reshape(-1) for name in "ab"])
    chosen = np.concatenate([values[name].reshape(-1) != 0 for name in "ab"])
    assert np.array_equal(np.flatnonzero(chosen), np.sort(np.argsort(-everything)[:300]))
    zeros = {"a": np.zeros((50, 50), np.float32)}
    assert len(perbit.dumps(zeros, plan)) < 60
