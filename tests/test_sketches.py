"""SketchML, SKCompress and 3LC: worked by hand, the sizes their formulas give, hostile input."""

from __future__ import annotations

import math
import tracemalloc

import expected_volumes as expected
import numpy as np
import pytest

import perbit
from perbit.coding.bits import Reader, Writer, varint
from perbit.coding.codec import as_pipeline
from perbit.coding.families import keys
from perbit.coding.families.buckets import BucketLayout, quantile_buckets
from perbit.coding.families.threelc import lengthen_runs, pack_ternary, shorten_runs, unpack_ternary

OVERHEAD = 64  # bytes of header, checksum, tables and section lengths that no formula counts


def decode(spec: str, data: bytes, n: int) -> np.ndarray:
    src = Reader(data)
    values = as_pipeline(perbit.codec(spec)).rest.decode_floats(src, (n,))
    src.end()
    return values


def sparse(n: int, kept: int, seed: int = 0) -> np.ndarray:
    """Laplace values at random positions: the input on which sizes are compared with the formulas."""
    rng = np.random.default_rng(seed)
    x = np.zeros(n, np.float32)
    x[rng.choice(n, kept, replace=False)] = rng.laplace(size=kept)
    return x


# ---- buckets and keys


def test_buckets_hold_equal_counts_of_each_sign() -> None:
    x = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    means, buckets, negative = quantile_buckets(x, 64)
    counts = np.bincount(buckets, minlength=64)
    assert means.size == 64
    assert counts.min() >= 15
    assert counts.max() <= 17
    assert np.all(np.diff(means[:negative]) < 0)  # by magnitude
    assert np.all(np.diff(means[negative:]) > 0)
    assert np.array_equal(means[buckets] < 0, x < 0)


@pytest.mark.parametrize("x", [[], [5.0], [-5.0], [-1.0, 1.0], [1.0, 1.0, 1.0], [-1e38, -3e38, 3e38]])
@pytest.mark.parametrize("bins", [1, 2, 256])
def test_buckets_of_few_values(x: list[float], bins: int) -> None:
    means, buckets, negative = quantile_buckets(np.array(x, np.float32), bins)
    assert np.isfinite(means).all()
    assert np.array_equal(buckets < negative, np.array(x) < 0)


def test_groups_divide_the_buckets_of_each_sign() -> None:
    layout = BucketLayout(negative=100, positive=156, groups=8)
    assert layout.widths.tolist() == [34] * 3 + [32] * 5
    assert layout.firsts.tolist() == [0, 34, 68, 100, 132, 164, 196, 228]
    assert layout.group_of(np.array([0, 33, 34, 99, 100, 255])).tolist() == [0, 0, 1, 2, 3, 7]
    assert BucketLayout(0, 0, 8).widths.size == 0


def test_keys_by_hand() -> None:
    gaps = np.array([1, 256, 257, 1 << 24, (1 << 24) + 1, 1 << 32], np.uint64)
    classes = bytes([0b10_01_00_00, 0b11_11])
    bodies = bytes([0, 255]) + (256).to_bytes(2, "little") + ((1 << 24) - 1).to_bytes(3, "little")
    assert keys.delta_binary(gaps) == classes + bodies + (1 << 24).to_bytes(4, "little") + b"\xff" * 4
    assert np.array_equal(keys.read_delta_binary(Reader(keys.delta_binary(gaps)), 6).take(6), gaps)
    some = np.array([1, 2, 3, 1000, (1 << 32) - 1], np.uint64)
    read = keys.read_delta_huffman(Reader(keys.delta_huffman(some)), 5)
    assert np.array_equal(np.concatenate([read.take(2), read.take(3)]), some)


def test_positions_of_groups() -> None:
    positions, counts = np.array([3, 9, 0, 4, 9], np.uint32), np.array([2, 0, 3])
    gaps = keys.gaps_of(positions, counts)
    assert gaps.tolist() == [4, 6, 1, 4, 5]

    def read(n: int) -> list[tuple[int, list[int]]]:
        coded = keys.read_delta_huffman(Reader(keys.delta_huffman(gaps)), 5)
        return [(group, part.tolist()) for group, part in keys.positions_of(coded, counts, n)]

    assert read(10) == [(0, [3, 9]), (2, [0, 4, 9])]
    with pytest.raises(perbit.DecodeError):
        read(9)


# ---- the sketch


@pytest.mark.parametrize("name", ["sketchml", "skcompress"])
def test_a_collision_only_shrinks(name: str) -> None:
    x = sparse(20_000, 3000)
    value = perbit.decode(perbit.encode(x, name))
    assert np.array_equal(value != 0, x != 0)
    assert np.array_equal(np.sign(value), np.sign(x))
    means, buckets, _ = quantile_buckets(x[x != 0], 256)
    assert np.all(np.abs(value[x != 0]) <= np.abs(means[buckets]))


@pytest.mark.parametrize("name", ["sketchml", "skcompress"])
def test_one_value_a_bucket_and_wide_tables_are_nearly_exact(name: str) -> None:
    x = np.array([0, 3, 0, -1, 0, 0, 7], np.float32)
    assert np.array_equal(perbit.decode(perbit.encode(x, f"{name}(groups=256)")), x)  # a group for every bucket


def test_both_methods_hold_the_same_values() -> None:
    x = sparse(5000, 700)
    assert np.array_equal(perbit.decode(perbit.encode(x, "sketchml")), perbit.decode(perbit.encode(x, "skcompress")))


def test_the_ratio_keeps_the_largest() -> None:
    x = np.random.default_rng(5).normal(size=1000).astype(np.float32)
    kept = perbit.decode(perbit.encode(x, "topk(0.1)"))
    assert np.array_equal(perbit.decode(perbit.encode(x, "skcompress(0.1)")) != 0, kept != 0)


@pytest.mark.parametrize(("n", "kept"), [(1_000_000, 100_000), (1_000_000, 10_000), (300_000, 120_000)])
def test_skcompress_has_the_size_of_its_formula(n: int, kept: int) -> None:
    size = len(perbit.encode(sparse(n, kept), "skcompress"))
    assert abs(size - OVERHEAD / 2 - expected.skcompress_bytes(n, kept)) < 0.05 * size


def test_sketchml_has_the_size_of_its_formula() -> None:
    size = len(perbit.encode(sparse(1_000_000, 100_000), "sketchml"))
    assert abs(size - expected.sketchml_bytes(1_000_000, 100_000)) < 0.05 * size


# ---- 3LC


def test_three_values_by_hand() -> None:
    x = np.array([4, -4, 1.9, -2.1, 0, 2.1, 3], np.float32)
    assert perbit.decode(perbit.encode(x, "threelc")).tolist() == [4, -4, 0, -4, 0, 4, 4]
    assert perbit.decode(perbit.encode(x, "threelc(1.5)")).tolist() == [6, -6, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("n", [1, 13, 14, 15, 27, 28, 29, 43])
def test_runs_of_every_length(n: int) -> None:
    packed = np.array([5] + [121] * n + [6], np.uint8)
    short = shorten_runs(packed)
    assert short.size == 2 + -(-n // 14)
    assert np.array_equal(lengthen_runs(short, n + 2), packed)


def test_digits_survive() -> None:
    x = np.random.default_rng(3).integers(-1, 2, 1003).astype(np.float32)
    assert np.array_equal(unpack_ternary(pack_ternary(x, 0.5), x.size), x + 1)


@pytest.mark.parametrize("zeros", [0.5, 0.9, 0.97, 0.995])
def test_threelc_has_the_size_of_its_formula(zeros: float) -> None:
    rng = np.random.default_rng(4)
    x = (rng.choice([-1, 1], 1_000_000) * (rng.random(1_000_000) >= zeros)).astype(np.float32)
    size = len(perbit.encode(x, "threelc"))
    assert abs(size - OVERHEAD / 2 - expected.threelc_bytes(x.size, zeros)) < 0.05 * size


def test_a_larger_multiplier_gives_more_zeros_and_fewer_bytes() -> None:
    x = np.random.default_rng(6).laplace(size=100_000).astype(np.float32)
    sizes = [len(perbit.encode(x, f"threelc({s})")) for s in (1.0, 1.5, 1.9)]
    assert sizes == sorted(sizes, reverse=True)


# ---- hostile input


def sketch(
    bins: tuple[int, int] = (0, 1),
    means: tuple[float, ...] = (1.5,),
    counts: tuple[int, ...] = (2,),
    gaps: tuple[int, ...] = (1, 2),
    cells: bytes = b"\0",
) -> bytes:
    """A payload of sketchml(bins=4, groups=1) for three values."""
    out = Writer()
    for number in bins:
        out.varint(number)
    out.section(np.array(means, "<f4").tobytes())
    for count in counts:
        out.varint(count)
    out.section(keys.delta_binary(np.array(gaps, np.uint64)))
    out.section(cells)
    return out.join()


def test_the_hand_made_sketch_is_good() -> None:
    assert decode("sketchml(bins=4, groups=1)", sketch(), 3).tolist() == [1.5, 0, 1.5]


@pytest.mark.parametrize(
    "data",
    [
        sketch(bins=(5, 0)),  # more buckets than the spec allows
        sketch(bins=(0, 2)),  # two buckets, one mean
        sketch(means=(math.nan,)),
        sketch(means=(math.inf,)),
        sketch(counts=(4,)),  # four keys for three values
        sketch(counts=(1,)),  # bytes left over
        sketch(gaps=(1, 3)),  # the key 3
        sketch(gaps=(1, 1 << 32)),
        sketch(cells=b""),
        sketch(cells=b"\0\0"),
        sketch(bins=(0, 3), means=(1, 2, 3), cells=b"\x03"),  # the bucket 3 of three
        sketch(bins=(1, 1), means=(-1, 1), counts=(1, 1), gaps=(2, 2)),  # one key in two groups
    ],
)
def test_hostile_sketches_are_refused(data: bytes) -> None:
    with pytest.raises(perbit.DecodeError):
        decode("sketchml(bins=4, groups=1)", data, 3)


def test_hostile_gap_lengths_are_refused() -> None:
    out = Writer()
    out.section(varint(0) + varint(31))  # every gap has 32 bits
    with pytest.raises(perbit.DecodeError):
        keys.read_delta_huffman(Reader(out.join()), 1 << 20)


def ternary(scale: float, runs: list[int]) -> bytes:
    out = Writer()
    out.section(np.array([scale], "<f4").tobytes())
    out.section(bytes(runs))
    return out.join()


def test_the_hand_made_runs_are_good() -> None:
    assert not decode("threelc", ternary(1, [244, 255]), 5 * 17).any()


@pytest.mark.parametrize(
    "data",
    [
        ternary(1, [244, 255, 255]),  # runs past the end
        ternary(1, [255]),  # too few
        ternary(1, []),
        ternary(math.nan, [244, 255]),
        ternary(-1, [244, 255]),
    ],
)
def test_hostile_runs_are_refused(data: bytes) -> None:
    with pytest.raises(perbit.DecodeError):
        decode("threelc", data, 5 * 17)


def test_padding_must_be_zero() -> None:
    with pytest.raises(perbit.DecodeError, match="padding"):
        decode("threelc", ternary(1, [0]), 3)


@pytest.mark.parametrize(
    ("spec", "data"),
    [
        ("threelc", ternary(1, [255] * 9)),
        ("sketchml", sketch(counts=(1 << 26,))),
        ("skcompress", sketch(counts=(1 << 26,))),
    ],
)
def test_a_short_frame_that_claims_much_allocates_little(spec: str, data: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(perbit.DecodeError):
        decode(spec, data, 1 << 27)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 27  # a keys array of the claimed count at most, never the dense tensor


@pytest.mark.parametrize(
    "spec",
    [
        "threelc(2)",
        "threelc(0.5)",
        "sketchml(2.0)",
        "sketchml(bins=0)",
        "skcompress(groups=0)",
        "skcompress(rows=9)",
        "skcompress(columns=0)",
    ],
)
def test_bad_parameters(spec: str) -> None:
    with pytest.raises(perbit.SpecError):
        perbit.codec(spec)
