"""Curve fits, sketches and ternary runs: orders that are none, coefficients that are no numbers, sizes that lie."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import numpy as np

from attacks.build import array, attack, section
from perbit.coding.bits import varint
from perbit.coding.families.keys import delta_binary
from perbit.coding.families.order import BLOCK, encode_order

Frames = Iterator[tuple[str, bytes, str]]
NAN, INF = float("nan"), float("inf")
IDENTITY = bytes([0, 0b10_01_00])  # of three values
SCALE = section(struct.pack("<f", 2.0))


def _floats(*values: float) -> bytes:
    return section(struct.pack(f"<{len(values)}f", *values))


def _polynomial(
    order: bytes = IDENTITY, scale: bytes = SCALE, ends: tuple[int, ...] = (1,), fit: bytes | None = None
) -> bytes:
    """A frame of three values on lines."""
    coefficients = _floats(0.5, 1.0) if fit is None else fit
    return array("fitpoly(1)", (3,), section(order), scale, *map(varint, ends), coefficients)


def _exponential(
    weights: tuple[float, float] = (1, 0), factors: tuple[float, float] = (1, 1), negatives: int = 0
) -> bytes:
    curve = section(struct.pack("<ffdd", *weights, *factors))
    return array("fitdexp", (3,), section(IDENTITY), SCALE, varint(negatives), curve)


@attack
def permutations_that_are_none() -> Frames:
    yield "one value twice", _polynomial(bytes([0, 0b01_01_10])), "not a permutation"
    yield "a value beyond the last", _polynomial(bytes([0, 0b11_00_10])), "not a permutation"
    yield "padding", _polynomial(bytes([0, 0b1101_0010])), "padding"
    yield "no method", _polynomial(b""), "method"
    yield "method 2", _polynomial(bytes([2, 0])), "method"
    yield "too short", _polynomial(bytes([0])), "need 2 bytes"
    yield "too long", _polynomial(bytes([0, 0b10_01_00, 0])), "need 2 bytes"
    last = math.factorial(BLOCK)
    yield "a block's number of 20!", _polynomial(bytes([1]) + last.to_bytes(8, "little")), "not below 20!"
    yield "ranks beyond the values", _polynomial(bytes([1]) + (last - 1).to_bytes(8, "little")), "not a permutation"
    blocks = encode_order(np.arange(2 * BLOCK), "blocks")
    alike = blocks[:1] + bytes(5) + blocks[6:]  # 40 block numbers of one bit, all zero
    yield "blocks of the wrong size", array("fitpoly(1)", (2 * BLOCK,), section(alike)), "not a permutation"


@attack
def positions_in_the_order_of_values() -> Frames:
    def frame(count: int, mode: int, positions: int) -> bytes:
        return array("topk(k=2) | fitdexp", (3,), varint(count), varint(mode), section(bytes([positions])))

    yield "one position twice", frame(2, 1, 0b01_01), "different positions"
    yield "a position beyond the last", frame(2, 1, 0b11_01), "different positions"
    yield "no such order", frame(2, 2, 0), "order of the positions"
    yield "padding", frame(2, 1, 0b1001_0100), "padding"
    wide = array("topk(k=2) | fitdexp", (1 << 20,), varint(1 << 17), varint(1), section(bytes(8)))
    yield "many in eight bytes", wide, "words of 20 bits need"


@attack
def segments_of_fitpoly() -> Frames:
    yield "none", _polynomial(ends=(0,), fit=section(b"")), "segments cannot hold"
    yield "more than values", _polynomial(ends=(4, 1, 1, 1)), "number of segments"
    yield "2^60", _polynomial(ends=(1 << 60,)), "number of segments"
    yield "an empty one", _polynomial(ends=(2, 0)), "must ascend"
    yield "an end at the end", _polynomial(ends=(2, 3)), "must ascend"
    yield "an end far out", _polynomial(ends=(2, 1 << 60)), "length of a segment"
    yield "a coefficient too few", _polynomial(fit=_floats(1.0)), "do not fill"
    yield "a coefficient too many", _polynomial(fit=_floats(1.0, 1.0, 1.0)), "do not fill"
    for value in (NAN, INF, -INF):
        yield f"a coefficient of {value}", _polynomial(fit=_floats(1.0, value)), "coefficient is not finite"
        yield f"a scale of {value}", _polynomial(scale=_floats(value)), "scale is negative or not finite"
    yield "a scale of -1", _polynomial(scale=_floats(-1.0)), "scale is negative"
    yield "two scales", _polynomial(scale=_floats(1.0, 1.0)), "instead of 4"


@attack
def curves_of_fitdexp() -> Frames:
    for value in (NAN, INF, -INF):
        yield f"a weight of {value}", _exponential(weights=(1, value)), "not finite"
        yield f"a factor of {value}", _exponential(factors=(value, 1)), "not finite"
    yield "a factor of 0", _exponential(factors=(0, 1)), "not positive"
    yield "a factor of -1", _exponential(factors=(1, -1)), "not positive"
    yield "an overflow", _exponential(factors=(1e300, 1)), "overflows"
    yield "infinity less infinity", _exponential((1, -1), (1e300, 1e300)), "overflows"
    yield "two signs, one curve", _exponential(negatives=1), "2 curves need"
    yield "more negatives than values", _exponential(negatives=4), "number of negative values"


def _sketch(
    bins: tuple[int, int] = (0, 1),
    means: tuple[float, ...] = (1.5,),
    counts: tuple[int, ...] = (2,),
    gaps: tuple[int, ...] = (1, 2),
    cells: bytes = b"\0",
    n: int = 3,
) -> bytes:
    keys = section(delta_binary(np.array(gaps, np.uint64)))
    return array(
        "sketchml(bins=4, groups=1)",
        (n,),
        *map(varint, bins),
        _floats(*means),
        *map(varint, counts),
        keys,
        section(cells),
    )


@attack
def sketches() -> Frames:
    yield "more buckets than the spec has", _sketch(bins=(5, 0)), "negative buckets"
    yield "a bucket without a mean", _sketch(bins=(0, 2)), "buckets need 8 bytes"
    yield "a mean that is no number", _sketch(means=(NAN,)), "mean is not finite"
    yield "an infinite mean", _sketch(means=(INF,)), "mean is not finite"
    yield "more keys than values", _sketch(counts=(4,)), "keys of a group"
    yield "many keys in three bytes", _sketch(counts=(1 << 17,), n=1 << 20), "lengths of gaps"
    yield "keys left over", _sketch(counts=(1,)), "left over"
    yield "a key at the end", _sketch(gaps=(1, 3)), "not below 3"
    yield "a gap of 2^32", _sketch(gaps=(1, 1 << 32)), "not below 3"
    yield "no cells", _sketch(cells=b""), "cells need 1 bytes"
    yield "too many cells", _sketch(cells=b"\0\0"), "cells need 1 bytes"
    yield (
        "a bucket that does not exist",
        _sketch((0, 3), (1, 2, 3), cells=b"\x03"),
        "outside the alphabet|does not exist",
    )
    yield "one key in two groups", _sketch((1, 1), (-1, 1), (1, 1), (2, 2)), "the same key"


@attack
def ternary_runs() -> Frames:
    def frame(runs: bytes, scale: float = 1.0, n: int = 85) -> bytes:
        return array("threelc", (n,), _floats(scale), section(runs))

    yield "past the end", frame(bytes([244, 255, 255])), "31 bytes instead of 17"
    yield "too few", frame(bytes([255])), "14 bytes instead of 17"
    yield "none", frame(b""), "0 bytes instead of 17"
    yield "a million values in a byte", frame(bytes([255]), n=1_000_000), "14 bytes instead of"
    yield "padding", frame(bytes([0]), n=3), "padding"
    for scale in (NAN, INF, -1.0):
        yield f"a scale of {scale}", frame(bytes([244, 255]), scale), "scale is negative or not finite"
