"""Quantizers, their inverses and error feedback in numpy; every float32 operation in the order of the contract."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import F32, Symbols
from perbit.kernels.reference.checks import (
    bucket_of,
    finite32,
    float32,
    pieces,
    require,
    require_alphabet,
    require_buckets,
    require_same_length,
    require_start,
)
from perbit.kernels.reference.random import uniform24
from perbit.kernels.reference.selection import axpy

_ONE = np.float32(1)


def _clipped_floor(v: F32, top: int) -> NDArray[np.int32]:
    """clip(floor(v), 0, top); v is clipped first, so that it fits an integer."""
    return np.fmin(np.fmax(v, np.float32(0)), np.float32(top)).astype(np.int32)


def quantize_uniform(x: F32, scale: float, offset: float, levels: int, out: Symbols) -> None:
    require_same_length(x, out)
    scale32, offset32 = finite32(scale), finite32(offset)
    require_alphabet(out, levels)
    with np.errstate(all="ignore"):
        for piece in pieces(len(x)):
            out[piece] = _clipped_floor(x[piece] * scale32 + offset32, levels - 1)


def quantize_uniform_random(
    x: F32, scale: float, offset: float, levels: int, key: int, start: int, out: Symbols
) -> None:
    require_same_length(x, out)
    scale32, offset32 = finite32(scale), finite32(offset)
    require_alphabet(out, levels)
    require_start(start, len(x))
    with np.errstate(all="ignore"):
        for piece in pieces(len(x)):
            u = uniform24(key, start + piece.start, start + piece.stop)
            out[piece] = _clipped_floor((x[piece] * scale32 + offset32) + u, levels - 1)


def quantize_levels_random(x: F32, scales: F32, bucket: int, levels: int, key: int, start: int, out: Symbols) -> None:
    require_same_length(x, out)
    require(levels >= 1, "levels must be positive")
    require_alphabet(out, 2 * levels + 1)
    require_buckets(start, len(x), bucket, len(scales))
    with np.errstate(all="ignore"):
        for piece in pieces(len(x)):
            u = uniform24(key, start + piece.start, start + piece.stop)
            level = _clipped_floor(np.abs(x[piece]) * scales[bucket_of(start, piece, bucket)] + u, levels)
            out[piece] = np.where(x[piece] >= 0, levels + level, levels - level)


def quantize_codebook(x: F32, thresholds: F32, out: Symbols) -> None:
    require_same_length(x, out)
    require_alphabet(out, len(thresholds) + 1)
    require(bool(np.all(thresholds[:-1] <= thresholds[1:])), "thresholds must be ascending")
    for piece in pieces(len(x)):
        out[piece] = np.searchsorted(thresholds, x[piece], side="right")


def quantize_codebook_random(x: F32, codebook: F32, key: int, start: int, out: Symbols) -> None:
    require_same_length(x, out)
    require(len(codebook) >= 2, "the codebook needs at least two entries")
    require_alphabet(out, len(codebook))
    require(bool(np.all(codebook[:-1] < codebook[1:])), "the codebook must be strictly ascending")
    require_start(start, len(x))
    with np.errstate(all="ignore"):
        inverse_width = _ONE / (codebook[1:] - codebook[:-1])
        for piece in pieces(len(x)):
            values = x[piece]
            cell = np.searchsorted(codebook[1:-1], values, side="right")
            chance = (values - codebook[cell]) * inverse_width[cell]
            out[piece] = cell + (uniform24(key, start + piece.start, start + piece.stop) < chance)


def lowfloat(
    x: F32, scale: float, exponent_bits: int, mantissa_bits: int, max_code: int, out: NDArray[np.uint8]
) -> None:
    require_same_length(x, out)
    scale32 = finite32(scale)
    require(
        exponent_bits >= 1 and mantissa_bits >= 0 and exponent_bits + mantissa_bits <= 7,
        "a low float has at least one exponent bit and at most seven bits besides the sign",
    )
    require(1 <= max_code < 1 << exponent_bits + mantissa_bits, "max_code does not fit the format")
    smallest_exponent = 2 - (1 << exponent_bits - 1)  # of the normal numbers
    with np.errstate(all="ignore"):
        for piece in pieces(len(x)):
            y = x[piece] * scale32
            size = np.minimum(np.abs(y).astype(np.float64), 2.0**100)  # saturates anyway, and stays finite
            exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, smallest_exponent), smallest_exponent)
            steps = np.rint(np.ldexp(size, mantissa_bits - exponent))  # exact, then to the nearest even
            code = np.minimum(np.ldexp(exponent - smallest_exponent, mantissa_bits) + steps, max_code).astype(np.uint8)
            sign = np.signbit(y).astype(np.uint8) << np.uint8(exponent_bits + mantissa_bits)
            out[piece] = np.where(code == 0, 0, code | sign)


def _require_symbols_below(symbols: Symbols, size: int) -> None:
    require(len(symbols) == 0 or int(symbols.max()) < size, "a symbol lies outside its table")


def dequantize(symbols: Symbols, table: F32, out: F32) -> None:
    require_same_length(symbols, out)
    _require_symbols_below(symbols, len(table))
    for piece in pieces(len(symbols)):
        out[piece] = table[symbols[piece]]


def dequantize_buckets(symbols: Symbols, table: F32, norms: F32, bucket: int, start: int, out: F32) -> None:
    require_same_length(symbols, out)
    require_buckets(start, len(symbols), bucket, len(norms))
    _require_symbols_below(symbols, len(table))
    with np.errstate(all="ignore"):
        for piece in pieces(len(symbols)):
            out[piece] = table[symbols[piece]] * norms[bucket_of(start, piece, bucket)]


def axpy_table(out: F32, symbols: Symbols, table: F32, weight: float) -> None:
    values = np.empty_like(out)
    dequantize(symbols, table, values)
    axpy(out, values, weight)


def axpy_buckets(out: F32, symbols: Symbols, table: F32, norms: F32, bucket: int, start: int, weight: float) -> None:
    values = np.empty_like(out)
    dequantize_buckets(symbols, table, norms, bucket, start, values)
    axpy(out, values, weight)


def feedback_add(g: F32, memory: F32, gamma: float, out: F32) -> None:
    require_same_length(g, memory, out)
    with np.errstate(all="ignore"):
        for piece in pieces(len(g)):
            out[piece] = g[piece] + float32(gamma) * memory[piece]


def feedback_update(g: F32, memory: F32, gamma: float, symbols: Symbols, table: F32, out: F32) -> None:
    require_same_length(g, memory, symbols, out)
    _require_symbols_below(symbols, len(table))
    with np.errstate(all="ignore"):
        for piece in pieces(len(g)):
            out[piece] = (g[piece] + float32(gamma) * memory[piece]) - table[symbols[piece]]
