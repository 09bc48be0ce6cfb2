"""Kernels of random numbers, quantizers, low floats, tables and feedback: three back ends agree bit for bit, and with oracles."""

# ruff: noqa: B023 - the functions made in loops are called before the loop goes on

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numeric_backends import F32, SIZES, SPECIAL, fails_on_all, filled, inputs, normal, on_all, same_bits
from perbit import kernels
from perbit.kernels import K
from perbit.kernels.reference.random import splitmix64, uniform24

KEY = 0x0123456789ABCDEF
CHUNK = kernels.CHUNK


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

        def add(out: F32, got: Any = got, table: F32 = table) -> None:
            out[:] = x
            K.axpy_buckets(out, got, table, scales, bucket, start, -0.3)

        assert same_bits(on_all(lambda: filled(np.float32, n, add)), x + np.float32(-0.3) * back)
    out = np.empty(n, dtype=np.uint8)
    if buckets > 1:
        fails_on_all(
            lambda: K.quantize_levels_random(x, scales[:-1], bucket, 7, KEY, start, out), "fewer bucket scales"
        )
        fails_on_all(
            lambda: K.dequantize_buckets(out, scales, scales[:-1], bucket, start, np.empty_like(x)), "fewer bucket"
        )
        fails_on_all(
            lambda: K.axpy_buckets(np.empty_like(x), out, scales, scales[:-1], bucket, start, 1.0), "fewer bucket"
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
        (np.uint8, 31),
        (np.uint8, 32),
        (np.uint8, 33),
        (np.uint8, 256),
        (np.uint16, 4096),
    ):
        symbols, table = rng.integers(0, size, n).astype(dtype), normal(size)
        assert same_bits(
            on_all(lambda: filled(np.float32, n, lambda out: K.dequantize(symbols, table, out))), table[symbols]
        )

        def add(out: F32, symbols: Any = symbols, table: F32 = table) -> None:
            out[:] = g
            K.axpy_table(out, symbols, table, 1 / 3)

        assert same_bits(on_all(lambda: filled(np.float32, n, add)), g + np.float32(1 / 3) * table[symbols])
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
            fails_on_all(lambda: K.axpy_table(out, bad, table, 1.0), "outside its table")
            fails_on_all(lambda: K.axpy_buckets(out, bad, table, table, n, 0, 1.0), "outside its table")
            assert np.all(out == 7)
    fails_on_all(lambda: K.dequantize(np.zeros(3, np.uint8), np.empty(0, np.float32), np.empty(3, np.float32)))
