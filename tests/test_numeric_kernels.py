"""The numeric kernels: three back ends agree bit for bit, and each result agrees with an independent oracle."""

# ruff: noqa: B023 - the functions made in loops are called before the loop goes on

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perbit import kernels
from perbit.kernels import K
from perbit.kernels.reference.random import splitmix64, uniform24

SIZES = [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 65535, 65536, 65537, 200_000]
SMALL_SIZES = [0, 1, 7, 8, 9, 33, 65, 1000]
SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-39, 3e38, -3e38, 1.0, -1.0, 0.5, 2.0**-126], dtype=np.float32)
KEY = 0x0123456789ABCDEF
CHUNK = kernels.CHUNK

F32 = np.ndarray[Any, np.dtype[np.float32]]


def normal(n: int, seed: int = 1) -> F32:
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32)


def inputs(n: int) -> Iterator[F32]:
    """Gaussian values, aligned and not, many ties, and special values."""
    yield normal(n)
    yield normal(n + 1)[1:]
    yield np.round(normal(n) * 2).astype(np.float32)
    yield np.resize(SPECIAL, n)


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same_bits(p, q) for p, q in zip(a, b, strict=True))
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return type(a) is type(b) and bool(a == b)


def on_all(call: Callable[[], Any]) -> Any:
    """The result of call on every back end, which must be the same."""
    results = []
    for name in kernels.available():
        with kernels.using(name):
            results.append(call())
    for name, result in zip(kernels.available(), results, strict=True):
        assert same_bits(result, results[0]), name
    return results[0]


def fails_on_all(call: Callable[[], Any], message: str | None = None) -> None:
    for name in kernels.available():
        with kernels.using(name), pytest.raises(ValueError, match=message):
            call()


def filled(dtype: type[np.generic], n: int, call: Callable[[Any], None]) -> Any:
    """call writes into a new array of n entries and nowhere else."""
    guard = 64
    out = np.full(n + 2 * guard, 99, dtype=dtype)
    call(out[guard : guard + n])
    assert np.all(out[:guard] == 99)
    assert np.all(out[guard + n :] == 99)
    return out[guard : guard + n].copy()


def lane_sum(values: list[float]) -> float:
    """The sum of one block as the contract words it."""
    lanes = [0.0] * 16
    for i, v in enumerate(values):
        lanes[i % 16] += v
    half = 8
    while half:
        lanes = [lanes[j] + lanes[j + half] for j in range(half)]
        half //= 2
    return lanes[0]


def block_sum(values: list[float]) -> float:
    total = 0.0
    for begin in range(0, len(values), 65536):
        total += lane_sum(values[begin : begin + 65536])
    return total


# --- reductions


@pytest.mark.parametrize("n", SIZES)
def test_scan_and_moments(n: int) -> None:
    for x in inputs(n):
        low, high, nonfinite = on_all(lambda: K.scan(x))
        assert nonfinite == 0
        if n:
            assert (low, high) == (x.min(), x.max())

        def with_hist(x: F32 = x) -> Any:
            hist = np.ones(2048, dtype=np.uint64)
            return (*K.moments(x, hist), hist)

        *values, hist = on_all(with_hist)
        assert same_bits(tuple(values), on_all(lambda: K.moments(x)))
        wide = x.astype(np.float64)
        assert values[0] == block_sum(wide.tolist())
        assert values[1] == block_sum(np.abs(wide).tolist())
        assert values[2] == block_sum((wide * wide).tolist())
        assert values[3] == (np.abs(x).max() if n else 0)
        assert values[4] == np.count_nonzero(x == 0)
        assert np.array_equal(hist - 1, np.bincount(x.view(np.uint32) >> 20 & 2047, minlength=2048))


def test_scan_counts_what_is_not_finite() -> None:
    x = normal(1000)
    x[[3, 500, 999]] = np.nan, np.inf, -np.inf
    assert on_all(lambda: K.scan(x))[2] == 3
    assert on_all(lambda: K.scan(np.array([-0.0, 0.0], dtype=np.float32))) == (0.0, 0.0, 0)


@pytest.mark.parametrize("bucket", [1, 5, 16, 17, 64, 512, 1000, 70_000, 1 << 40])
def test_bucket_norms(bucket: int) -> None:
    for n in (0, 1, 63, 1000, 70_001, 141_000):
        if n > 1000 * bucket:
            continue  # too many buckets for the plain loop below
        for x in inputs(n):
            squares = x.astype(np.float64) ** 2
            with np.errstate(over="ignore"):
                l2 = [np.float32(math.sqrt(block_sum(squares[i : i + bucket].tolist()))) for i in range(0, n, bucket)]
            assert on_all(lambda: K.bucket_norms(x, bucket, "l2")).tolist() == l2
            largest = on_all(lambda: K.bucket_norms(x, bucket, "max"))
            assert largest.tolist() == [np.abs(x[i : i + bucket]).max() for i in range(0, n, bucket)]


# --- random numbers and quantizers


def plain_uniform24(key: int, i: int) -> float:
    word = 0xFFFFFFFF
    z = splitmix64(key + (i >> 20) & (1 << 64) - 1)
    x = (i & 0xFFFFF) * 0x9E3779B9 + (z & word) & word
    x = (x ^ x >> 16) * 0x7FEB352D & word
    x ^= z >> 32
    x = (x ^ x >> 15) * 0x846CA68B & word
    return (x ^ x >> 16) >> 8


def test_splitmix64_known_values() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the first outputs of the published generator from seed 0
    assert splitmix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4


@given(key=st.integers(0, 2**64 - 1), start=st.integers(0, 2**60), chunk_edge=st.booleans())
@settings(max_examples=30, deadline=None)
def test_uniform24_is_the_stated_function(key: int, start: int, chunk_edge: bool) -> None:
    if chunk_edge:
        start = (start | CHUNK - 1) - 20
    exact = [plain_uniform24(key, start + i) for i in range(41)]
    assert (uniform24(key, start, start + 41).astype(np.float64) * 2**24).tolist() == exact
    # The compiled numbers, seen through a quantizer: floor(u * 2^12) by 4096 equal steps of x + u.
    x = np.zeros(41, dtype=np.float32)
    for threshold in (0.25, 0.5):
        offset = 1.0 - threshold
        out = on_all(
            lambda: filled(np.uint8, 41, lambda out: K.quantize_uniform_random(x, 1.0, offset, 2, key, start, out))
        )
        assert out.tolist() == [int(u * 2.0**-24 >= threshold) for u in exact]


STARTS = [0, 5, CHUNK - 3, 3 * CHUNK + 17, 2**40 - 100]


@pytest.mark.parametrize("n", SIZES)
def test_uniform_quantizers(n: int) -> None:
    for x in inputs(n):
        for dtype, levels in ((np.uint8, 1), (np.uint8, 16), (np.uint8, 256), (np.uint16, 4096), (np.uint16, 65536)):
            scale, offset = levels / 8, levels / 2 + 0.25
            got = on_all(lambda: filled(dtype, n, lambda out: K.quantize_uniform(x, scale, offset, levels, out)))
            with np.errstate(over="ignore"):
                y = x * np.float32(scale) + np.float32(offset)
            assert np.array_equal(got, np.clip(np.floor(y), 0, levels - 1))
        start = STARTS[n % len(STARTS)]
        got = on_all(
            lambda: filled(np.uint8, n, lambda out: K.quantize_uniform_random(x, 3.0, 8.0, 16, KEY, start, out))
        )
        with np.errstate(over="ignore"):
            y = x * np.float32(3) + np.float32(8) + uniform24(KEY, start, start + n)
        assert np.array_equal(got, np.clip(np.floor(y), 0, 15))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("bucket", "n"), [(1, 1000), (7, 1000), (64, 70_000), (512, 200_000), (1 << 20, 200_000)])
def test_levels_with_buckets_and_their_inverse(start: int, bucket: int, n: int) -> None:
    start %= 4 * CHUNK  # the array of scales covers the tensor from its beginning
    x = normal(n)
    buckets = (start + n - 1) // bucket + 1
    scales = np.random.default_rng(3).random(buckets, dtype=np.float32) * 8
    which = (start + np.arange(n)) // bucket
    for dtype, s in ((np.uint8, 1), (np.uint8, 7), (np.uint8, 127), (np.uint16, 2000)):
        got = on_all(
            lambda: filled(dtype, n, lambda out: K.quantize_levels_random(x, scales, bucket, s, KEY, start, out))
        )
        level = np.minimum(np.floor(np.abs(x) * scales[which] + uniform24(KEY, start, start + n)), s)
        assert np.array_equal(got, np.where(x >= 0, s + level, s - level))
        table = normal(2 * s + 1)
        back = on_all(
            lambda: filled(np.float32, n, lambda out: K.dequantize_buckets(got, table, scales, bucket, start, out))
        )
        assert same_bits(back, table[got] * scales[which])
    out = np.empty(n, dtype=np.uint8)
    if buckets > 1:
        fails_on_all(
            lambda: K.quantize_levels_random(x, scales[:-1], bucket, 7, KEY, start, out), "fewer bucket scales"
        )
        fails_on_all(
            lambda: K.dequantize_buckets(out, scales, scales[:-1], bucket, start, np.empty_like(x)), "fewer bucket"
        )


def codebooks() -> Iterator[F32]:
    for size in (2, 3, 8, 15, 16, 17, 18, 100, 255, 256, 257, 1000, 4096):
        yield np.unique(normal(size, seed=size))
        yield np.linspace(-3, 3, size, dtype=np.float32)
    yield np.float32(1) + np.arange(300, dtype=np.float32) * np.float32(2.0**-23)  # all share their leading bits
    yield np.unique(np.concatenate([SPECIAL, normal(20)])) + np.float32(0)


@pytest.mark.parametrize("n", [0, 1, 31, 33, 65, 1000, 65_537])
def test_codebooks(n: int) -> None:
    for book in codebooks():
        for x in [*inputs(n), np.resize(book, n), np.nextafter(np.resize(book, n), np.float32(-9))]:
            dtype = np.uint8 if len(book) < 256 else np.uint16
            got = on_all(lambda: filled(dtype, n, lambda out: K.quantize_codebook(x, book, out)))
            assert np.array_equal(got, np.searchsorted(book, x, side="right"))
            if n > 1000:
                break
        on_all(lambda: filled(dtype, n, lambda out: K.quantize_codebook_random(x, book, KEY, CHUNK - 40, out)))


def test_codebook_with_equal_thresholds_zeros_and_none() -> None:
    x = np.array([-1.0, -0.0, 0.0, 1.0], dtype=np.float32)
    for copies in (1, 5, 20):
        for zero in (0.0, -0.0):
            thresholds = np.full(copies, zero, dtype=np.float32)
            got = on_all(lambda: filled(np.uint8, 4, lambda out: K.quantize_codebook(x, thresholds, out)))
            assert got.tolist() == [0, copies, copies, copies]
    none = np.empty(0, dtype=np.float32)
    assert on_all(lambda: filled(np.uint8, 4, lambda out: K.quantize_codebook(x, none, out))).tolist() == [0] * 4


@pytest.mark.parametrize("size", [2, 5, 16, 40, 256])
def test_random_quantizers_are_unbiased(size: int) -> None:
    n = 200_000
    book = np.unique(normal(size, seed=size))
    x = np.random.default_rng(5).uniform(book[0], book[-1], n).astype(np.float32)
    out = np.empty(n, dtype=np.uint8)
    K.quantize_codebook_random(x, book, KEY, 0, out)
    error = book[out].astype(np.float64) - x
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(n)
    K.quantize_uniform_random(x, 10.0, 100.0, 256, KEY, 0, out)
    error = out - (x.astype(np.float64) * 10 + 100)
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(n)
    scale = np.array([20.0], dtype=np.float32)
    K.quantize_levels_random(x, scale, n, 127, KEY, 0, out)
    error = (out.astype(np.float64) - 127) - np.clip(x.astype(np.float64) * 20, -127, 127)
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(n)


# --- low floats

FORMATS = [
    (2, 1, 7, ml_dtypes.float4_e2m1fn),
    (2, 3, 31, ml_dtypes.float6_e2m3fn),
    (3, 2, 31, ml_dtypes.float6_e3m2fn),
    (4, 3, 126, ml_dtypes.float8_e4m3fn),
    (4, 3, 119, ml_dtypes.float8_e4m3),
    (3, 4, 111, ml_dtypes.float8_e3m4),
    (5, 2, 123, ml_dtypes.float8_e5m2),
]


@pytest.mark.parametrize(("e", "m", "max_code", "dtype"), FORMATS)
def test_low_floats_against_ml_dtypes(e: int, m: int, max_code: int, dtype: Any) -> None:
    codes = np.arange(max_code + 1, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float32)
    middles = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(middles, np.float32(d)) for d in (-1e9, 1e9)]
    x = np.concatenate([values, middles, *near, normal(1000) * values[-1] / 3])
    x = np.concatenate([x, -x])
    scale = np.float32(0.7)
    for y, factor in ((x, 1.0), (x / scale, scale)):
        got = on_all(lambda: filled(np.uint8, len(y), lambda out: K.lowfloat(y, float(factor), e, m, max_code, out)))
        clipped = np.clip(y * np.float32(factor), -values[-1], values[-1])
        expected = clipped.astype(dtype).view(np.uint8)
        expected = np.where(expected & (1 << e + m) - 1, expected, 0)
        assert np.array_equal(got, expected)


@pytest.mark.parametrize(("e", "m"), [(e, m) for e in range(1, 8) for m in range(8 - e)])
def test_low_floats_of_every_shape(e: int, m: int) -> None:
    bias, top = 2 ** (e - 1) - 1, 2 ** (e + m) - 1
    codes = np.arange(top + 1)
    exponent, fraction = codes >> m, codes & (1 << m) - 1
    values = np.where(exponent > 0, 2.0**m + fraction, fraction) * 2.0 ** (np.maximum(exponent, 1) - bias - m)
    x = np.concatenate([SPECIAL, values, normal(500)]).astype(np.float32)
    got = on_all(lambda: filled(np.uint8, len(x), lambda out: K.lowfloat(x, 1.0, e, m, top, out)))
    assert np.array_equal(got[len(SPECIAL) : len(SPECIAL) + len(codes)], codes)
    limited = on_all(lambda: filled(np.uint8, len(x), lambda out: K.lowfloat(x, 1.0, e, m, 1, out)))
    assert np.array_equal(limited & top, np.minimum(got & top, 1))


@pytest.mark.parametrize("n", SIZES)
def test_low_float_sizes(n: int) -> None:
    for x in inputs(n):
        on_all(lambda: filled(np.uint8, n, lambda out: K.lowfloat(x, 100.0, 4, 3, 126, out)))


# --- tables and feedback


@pytest.mark.parametrize("n", SIZES)
def test_tables_and_feedback(n: int) -> None:
    rng = np.random.default_rng(n)
    g, memory = normal(n), normal(n + 1, seed=2)[1:]
    for dtype, size in (
        (np.uint8, 1),
        (np.uint8, 3),
        (np.uint8, 16),
        (np.uint8, 17),
        (np.uint8, 256),
        (np.uint16, 4096),
    ):
        symbols, table = rng.integers(0, size, n).astype(dtype), normal(size)
        assert same_bits(
            on_all(lambda: filled(np.float32, n, lambda out: K.dequantize(symbols, table, out))), table[symbols]
        )
        got = on_all(lambda: filled(np.float32, n, lambda out: K.feedback_update(g, memory, 0.9, symbols, table, out)))
        expected = g + np.float32(0.9) * memory
        assert same_bits(got, expected - table[symbols])
        assert same_bits(
            on_all(lambda: filled(np.float32, n, lambda out: K.feedback_add(g, memory, 0.9, out))), expected
        )

        def in_place() -> F32:
            state = memory.copy()
            K.feedback_update(g, state, 0.9, symbols, table, state)
            return state

        assert same_bits(on_all(in_place), expected - table[symbols])
        if n and size < 256:
            bad = symbols.copy()
            bad[n // 2] = size
            out = np.full(n, 7, dtype=np.float32)
            fails_on_all(lambda: K.dequantize(bad, table, out), "outside its table")
            fails_on_all(lambda: K.dequantize_buckets(bad, table, table, n, 0, out), "outside its table")
            fails_on_all(lambda: K.feedback_update(g, memory, 0.9, bad, table, out), "outside its table")
            assert np.all(out == 7)
    fails_on_all(lambda: K.dequantize(np.zeros(3, np.uint8), np.empty(0, np.float32), np.empty(3, np.float32)))


# --- selection


def plain_top_k(x: F32, k: int) -> Any:
    order = np.argsort(-np.abs(x), kind="stable")
    return np.sort(order[:k]).astype(np.uint32)


@pytest.mark.parametrize("n", SIZES)
def test_top_k_and_select_above(n: int) -> None:
    for x in inputs(n):
        for k in sorted({0, min(1, n), n // 1000, n // 100, n // 10, n // 2, max(0, n - 1), n}):
            assert same_bits(on_all(lambda: K.top_k(x, k)), plain_top_k(x, k))
        for threshold in (0.0, 1e-45, 0.5, 1.0, 2.0, 3e38, math.inf):
            got = on_all(lambda: K.select_above(x, threshold))
            assert same_bits(got, np.flatnonzero(np.abs(x) >= np.float32(threshold)).astype(np.uint32))


def adversarial(n: int) -> Iterator[F32]:
    ramp = np.arange(n, dtype=np.float32)
    yield np.zeros(n, dtype=np.float32)
    yield np.full(n, -2.5, dtype=np.float32)
    yield ramp
    yield ramp[::-1].copy()
    yield np.where(ramp % 2 == 0, ramp, -ramp).astype(np.float32)
    yield (ramp % 3).astype(np.float32)
    clustered = np.zeros(n, dtype=np.float32)  # all that matters in one place, where a sample hardly looks
    clustered[1000:1500] = 1 + ramp[:500]
    yield clustered
    organ_pipe = np.minimum(ramp, n - ramp)
    yield organ_pipe.astype(np.float32)
    yield np.where(ramp < n // 2, ramp * np.float32(1e-42), ramp).astype(np.float32)


def test_top_k_on_adversarial_inputs() -> None:
    n = 150_001
    for x in adversarial(n):
        for k in (1, 400, 501, n // 100, n // 3, n - 2):
            assert same_bits(on_all(lambda: K.top_k(x, k)), plain_top_k(x, k))


@pytest.mark.parametrize("n", SMALL_SIZES)
def test_additions(n: int) -> None:
    x, base = normal(n), normal(n + 40, seed=4)
    positions = np.random.default_rng(6).integers(0, n + 40, n).astype(np.uint32)  # some of them several times

    def scattered() -> F32:
        out = base.copy()
        K.scatter_add(out, positions, x, 0.3)
        return out

    expected = base.copy()
    for p, v in zip(positions, np.float32(0.3) * x, strict=True):
        expected[p] += v
    assert same_bits(on_all(scattered), expected)

    def added() -> F32:
        out = base[1 : n + 1].copy()
        K.axpy(out, x, -0.7)
        return out

    assert same_bits(on_all(added), base[1 : n + 1] + np.float32(-0.7) * x)
    if n:
        for bad in (n + 40, 2**31, 2**32 - 1):
            out, at = base.copy(), positions.copy()
            at[-1] = bad
            fails_on_all(lambda: K.scatter_add(out, at, x, 1.0), "outside the output")
            assert same_bits(out, base)


# --- packing


def plain_pack(symbols: list[int], bits: int) -> bytes:
    whole = sum(s << i * bits for i, s in enumerate(symbols))
    return whole.to_bytes((len(symbols) * bits + 7) // 8, "little")


def test_pack_by_hand() -> None:
    assert on_all(lambda: K.pack(np.array([1, 2, 3], dtype=np.uint8), 3)) == bytes([0b11_010_001, 0b0])
    assert on_all(lambda: K.pack(np.array([0xABC, 0x123], dtype=np.uint16), 12)) == bytes([0xBC, 0x3A, 0x12])


@pytest.mark.parametrize("bits", range(1, 17))
def test_pack_round_trip(bits: int) -> None:
    for n in [*SIZES, 2, 3, 4, 5, 6, 9, 10, 65_536 + 9]:
        for dtype in (np.uint8, np.uint16):
            symbols = np.random.default_rng(n).integers(0, 1 << bits, n).astype(dtype)
            if bits > 8 * symbols.itemsize:
                fails_on_all(lambda: K.pack(symbols, bits), "bits must be")
                fails_on_all(lambda: K.unpack(b"", bits, symbols), "bits must be")
                continue
            data = on_all(lambda: K.pack(symbols, bits))
            if n <= 1000:
                assert data == plain_pack(symbols.tolist(), bits)
            odd = memoryview(b"x" + data)[1:]
            got = on_all(lambda: filled(dtype, n, lambda out: K.unpack(odd, bits, out)))
            assert np.array_equal(got, symbols)
            if n and bits < 8 * symbols.itemsize:
                symbols[n // 2] = 1 << bits
                fails_on_all(lambda: K.pack(symbols, bits), "does not fit")


def corruptions(data: bytes) -> Iterator[bytes]:
    """Every truncation, an extension, every bit flip."""
    yield from (data[:i] for i in range(len(data)))
    yield data + b"\0"
    yield data + b"\xff"
    for i in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        yield bytes(flipped)


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or that it failed: back ends must agree on both."""
    try:
        return call()
    except ValueError:
        return "ValueError"


@pytest.mark.parametrize(("n", "bits"), [(5, 3), (16, 4), (7, 1), (11, 7), (9, 8), (13, 11), (3, 16)])
def test_unpack_corrupt(n: int, bits: int) -> None:
    dtype = np.uint8 if bits <= 8 else np.uint16
    data = K.pack(np.random.default_rng(n).integers(0, 1 << bits, n).astype(dtype), bits)
    for bad in corruptions(data):
        result = on_all(lambda: outcome(lambda: filled(dtype, n, lambda out: K.unpack(bad, bits, out))))
        if not isinstance(result, str):
            assert K.pack(result, bits) == bad


# --- positions


def plain_golomb(positions: list[int], b: int) -> bytes:
    bits, following = "", 0
    for p in positions:
        gap = p - following
        bits += "".join(str(gap >> i & 1) for i in range(b)) + "0" * (gap >> b) + "1"
        following = p + 1
    return bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))


def test_golomb_by_hand() -> None:
    # gaps 0, 3, 9 with b = 2: low bits 00 1, then 11 1, then 10 001 (LSB first)
    positions = np.array([0, 4, 14], dtype=np.uint32)
    assert on_all(lambda: K.golomb_encode(positions, 2)) == bytes([0b01_111_100, 0b100])
    assert on_all(lambda: K.golomb_encode(positions[:0], 2)) == b""
    assert on_all(lambda: K.golomb_decode(b"", 0, 2, 0)).tolist() == []


@given(
    gaps=st.lists(st.one_of(st.integers(0, 20), st.integers(0, 5000)), max_size=60),
    b=st.sampled_from([0, 1, 2, 5, 9, 20, 31]),
)
@settings(max_examples=150, deadline=None)
def test_golomb_round_trip(gaps: list[int], b: int) -> None:
    positions = (np.cumsum(np.array(gaps, dtype=np.int64) + 1) - 1).astype(np.uint32)
    n = int(positions[-1]) + 1 if gaps else 0
    data = on_all(lambda: K.golomb_encode(positions, b))
    assert data == plain_golomb(positions.tolist(), b)
    view = memoryview(b"abc" + data)[3:]
    assert same_bits(on_all(lambda: K.golomb_decode(view, len(gaps), b, n)), positions)
    if gaps:
        fails_on_all(lambda: K.golomb_decode(data, len(gaps), b, n - 1))
        fails_on_all(lambda: K.golomb_decode(data[:-1], len(gaps), b, n))
    fails_on_all(lambda: K.golomb_decode(data + b"\0", len(gaps), b, n))
    fails_on_all(lambda: K.golomb_decode(data, 8 * len(data) + 1, b, 2**32))


def test_golomb_large() -> None:
    for n, k, b in ((1 << 22, 40_000, 6), (1 << 32, 5000, 19), (200_000, 100_000, 0)):
        rng = np.random.default_rng(k)
        positions = np.unique(np.append(rng.integers(0, n, k), n - 1)).astype(np.uint32)
        data = on_all(lambda: K.golomb_encode(positions, b))
        assert same_bits(on_all(lambda: K.golomb_decode(data, len(positions), b, n)), positions)


@pytest.mark.parametrize(("positions", "b"), [([0], 0), ([3, 4, 90], 2), ([7, 200, 201, 1000], 5), ([1 << 31], 31)])
def test_golomb_corrupt(positions: list[int], b: int) -> None:
    data = K.golomb_encode(np.array(positions, dtype=np.uint32), b)
    n = positions[-1] + 5
    for bad in corruptions(data):
        for count in (len(positions), len(positions) + 1):
            result = on_all(lambda: outcome(lambda: K.golomb_decode(bad, count, b, n)))
            if not isinstance(result, str):
                assert K.golomb_encode(result, b) == bad


def test_golomb_rejects() -> None:
    for bad in ([3, 3], [5, 4], [0, 0], [1, 2, 2**32 - 1, 0]):
        fails_on_all(lambda: K.golomb_encode(np.array(bad, dtype=np.uint32), 3), "strictly ascending")
    zeros = bytes(5000)
    fails_on_all(lambda: K.golomb_decode(zeros, 1, 31, 2**32), "ends within")
    late = zeros + b"\x80"  # a quotient of 40 000 with b = 31 would overflow 32 bits, and more zeros 64
    fails_on_all(lambda: K.golomb_decode(late, 1, 31, 2**32), "outside the tensor")
    fails_on_all(lambda: K.golomb_decode(b"\xff", 2**60, 0, 2**32), "too short")
    fails_on_all(lambda: K.golomb_decode(b"\xff", 8, 0, 2**32 + 1), "32-bit")
    fails_on_all(lambda: K.golomb_decode(b"\xff", 8, 32, 100), "0 to 31")


# --- checksums


def test_crc32c_known_values() -> None:
    for data, crc in (
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ):
        assert on_all(lambda: K.crc32c(data)) == crc


def test_crc32c_lengths_pieces_and_buffers() -> None:
    data = np.random.default_rng(8).integers(0, 256, 2_500_000, dtype=np.uint8).tobytes()
    lengths = [*range(40), 255, 256, 257, 767, 768, 769, 1535, 12_287, 12_288, 12_289, 40_000, 1 << 20, len(data)]
    for n in lengths:
        whole = on_all(lambda: K.crc32c(memoryview(data)[:n]))
        cut = n // 3
        assert K.crc32c(data[cut:n], K.crc32c(data[:cut])) == whole
        assert on_all(lambda: K.crc32c(memoryview(data)[1 : n + 1], 0xDEADBEEF)) >= 0
    assert K.crc32c(bytearray(b"123456789")) == K.crc32c(np.frombuffer(b"123456789", dtype=np.uint8).data)


# --- arguments


def test_lengths_must_match() -> None:
    x, short = normal(10), normal(9)
    o8, table = np.empty(9, dtype=np.uint8), normal(256)
    o10 = np.zeros(10, dtype=np.uint8)
    for call in (
        lambda: K.quantize_uniform(x, 1.0, 0.0, 4, o8),
        lambda: K.quantize_uniform_random(x, 1.0, 0.0, 4, 1, 0, o8),
        lambda: K.quantize_levels_random(x, x, 10, 4, 1, 0, o8),
        lambda: K.quantize_codebook(x, np.sort(x), o8),
        lambda: K.quantize_codebook_random(x, np.sort(x), 1, 0, o8),
        lambda: K.lowfloat(x, 1.0, 2, 1, 7, o8),
        lambda: K.dequantize(o10, table, short),
        lambda: K.dequantize_buckets(o10, table, x, 10, 0, short),
        lambda: K.scatter_add(x, np.zeros(10, dtype=np.uint32), short, 1.0),
        lambda: K.axpy(x, short, 1.0),
        lambda: K.feedback_add(x, short, 1.0, x),
        lambda: K.feedback_add(x, x, 1.0, short),
        lambda: K.feedback_update(x, x, 1.0, o8, table, x),
        lambda: K.feedback_update(x, short, 1.0, o10, table, x),
        lambda: K.feedback_update(x, x, 1.0, o10, table, short),
    ):
        fails_on_all(call, "lengths differ")


def test_arguments_out_of_range() -> None:
    x, out = normal(10), np.empty(10, dtype=np.uint8)
    for call in (
        lambda: K.moments(x, np.zeros(2047, dtype=np.uint64)),
        lambda: K.bucket_norms(x, 0, "l2"),
        lambda: K.bucket_norms(x, 4, "l1"),
        lambda: K.quantize_uniform(x, 1.0, 0.0, 0, out),
        lambda: K.quantize_uniform(x, 1.0, 0.0, 257, out),
        lambda: K.quantize_uniform(x, math.inf, 0.0, 4, out),
        lambda: K.quantize_uniform(x, 1.0, 1e300, 4, out),
        lambda: K.quantize_uniform_random(x, 1.0, 0.0, 4, 1, 2**63, out),
        lambda: K.quantize_levels_random(x, x, 10, 128, 1, 0, out),
        lambda: K.quantize_levels_random(x, x, 0, 4, 1, 0, out),
        lambda: K.quantize_levels_random(x, x[:1], 10, 4, 1, 2**64 - 5, out),
        lambda: K.quantize_codebook(x, np.array([1, 0], dtype=np.float32), out),
        lambda: K.quantize_codebook(x, np.array([1, np.nan], dtype=np.float32), out),
        lambda: K.quantize_codebook(x, np.sort(normal(256)), out),
        lambda: K.quantize_codebook_random(x, x[:1], 1, 0, out),
        lambda: K.quantize_codebook_random(x, np.ones(3, dtype=np.float32), 1, 0, out),
        lambda: K.lowfloat(x, 1.0, 0, 3, 3, out),
        lambda: K.lowfloat(x, 1.0, 4, 4, 3, out),
        lambda: K.lowfloat(x, 1.0, 2, 1, 8, out),
        lambda: K.lowfloat(x, 1.0, 2, 1, 0, out),
        lambda: K.top_k(x, 11),
        lambda: K.select_above(x, -1.0),
        lambda: K.select_above(x, math.nan),
        lambda: K.pack(out, 0),
        lambda: K.pack(out, 17),
        lambda: K.unpack(b"", 0, out),
    ):
        fails_on_all(call)


def test_half_precision_agrees_with_numpy_on_every_half_and_its_neighbours() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    finite = halves[np.isfinite(halves.view(np.float16))]
    exact = finite.view(np.float16).astype(np.float32)
    middles = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)
    x = np.concatenate(
        [exact, middles, np.nextafter(middles, 9e9), np.nextafter(middles, -9e9), [3e38, -3e38, 1e-45]]
    ).astype(np.float32)
    expected = np.clip(x, -65504, 65504).astype(np.float16).view(np.uint16)
    for name in kernels.available():
        with kernels.using(name):
            out, back = np.empty(len(x), np.uint16), np.empty(len(finite), np.float32)
            K.to_half(x, out)
            K.from_half(finite.tobytes(), back)
            assert np.array_equal(out, expected)
            assert np.array_equal(back.view(np.uint32), exact.view(np.uint32))
            for bad in (0x7C00, 0xFC00, 0x7E00):
                with pytest.raises(ValueError, match="infinite or not a number"):
                    K.from_half(np.array([0, bad], np.uint16).tobytes(), np.empty(2, np.float32))
