"""The numeric kernels refuse arrays whose lengths differ and arguments out of range, on every back end."""

from __future__ import annotations

import math

import numpy as np

from numeric_backends import fails_on_all, normal
from perbit.kernels import K


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
