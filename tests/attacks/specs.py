"""Lies of the spec in the header."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from attacks.build import array, attack, section
from perbit.coding.bits import varint
from perbit.coding.spec import MAX_DEPTH, MAX_STAGES

Frames = Iterator[tuple[str, bytes, str]]
VALUES = section(bytes(80))
RAW, FP16, TOPK, RANDK, THRESHOLD, UNIFORM, QSGD, PACK, RANS, DEFLATE, ZSTD, GOLOMB = (
    1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15,
)  # fmt: skip
WHOLE, NEGATIVE, DECIMAL, DOUBLE, TEXT, CODEC = 3, 4, 5, 7, 8, 9


def _stage(wire_id: int, mask: int = 0, *values: bytes) -> bytes:
    return varint(wire_id) + varint(mask) + b"".join(values)


def _spec(*stages: bytes) -> bytes:
    return varint(len(stages)) + b"".join(stages)


def _frame(*stages: bytes) -> bytes:
    return array(_spec(*stages), (20,), VALUES)


def _whole(value: int) -> bytes:
    return bytes([WHOLE]) + varint(value)


def _double(value: float) -> bytes:
    return bytes([DOUBLE]) + struct.pack("<d", value)


def _text(data: bytes) -> bytes:
    return bytes([TEXT]) + varint(len(data)) + data


def _nested(depth: int) -> bytes:
    """topk whose positions are coded by topk whose positions are coded by …"""
    inner = _stage(GOLOMB)
    for _ in range(depth):
        inner = _stage(TOPK, 0b110, _whole(1), bytes([CODEC]) + _spec(inner))
    return inner


@attack
def pipelines() -> Frames:
    yield "no stages", _frame(), "no stages"
    yield "too many stages", _frame(*[_stage(TOPK, 1, _whole(1))] * (MAX_STAGES + 1)), "number of stages"
    yield "2^60 stages", array(varint(1 << 60), (20,), VALUES), "number of stages"
    yield "a stage that is not there", array(varint(2) + _stage(RAW), (20,)), "codec id"
    yield "starts with symbols", _frame(_stage(RANS)), "takes symbols"
    yield "starts with bytes", _frame(_stage(ZSTD)), "takes bytes"
    yield "starts with positions", _frame(_stage(GOLOMB)), "codes positions"
    yield "two formats", _frame(_stage(RAW), _stage(FP16)), "bytes"
    yield "no quantizer", _frame(_stage(TOPK, 1, _whole(1)), _stage(RANS)), "put a quantizer"
    yield "beyond the end", _frame(_stage(RAW), _stage(ZSTD), _stage(ZSTD)), "leave one of them out"


@attack
def codec_numbers() -> Frames:
    for wire_id in (99, 1000, 1 << 62):
        yield f"{wire_id}", _frame(_stage(wire_id)), "unknown"
    yield "a name nobody knows", _frame(b"\x00" + varint(6) + b"nobody" + b"\x00"), "install the package"
    yield "a name with a number", _frame(b"\x00" + varint(3) + b"raw" + b"\x00"), "named by its number"
    yield "no name", _frame(b"\x00\x00\x00"), "unknown"
    yield "a name that is no text", _frame(b"\x00\x02\xff\xfe\x00"), "not UTF-8"
    yield "a name of 101 bytes", _frame(b"\x00" + varint(101) + b"x" * 101 + b"\x00"), "length of a text"
    yield "a pipeline by name", _frame(b"\x00" + varint(8) + b"pipeline" + b"\x00"), "unknown"


@attack
def parameters() -> Frames:
    yield "more than there are", _frame(_stage(RAW, 1, b"\x00")), "the mask names more"
    yield "mask of 2^62", _frame(_stage(UNIFORM, 1 << 62, b"\x00")), "the mask names more"
    yield "a required one missing", _frame(_stage(UNIFORM)), "needs 'bits'"
    for tag in (10, 99, 255):
        yield f"tag {tag}", _frame(_stage(UNIFORM, 1, bytes([tag]))), "unknown parameter tag"
    yield "cut short", array(_spec(_stage(UNIFORM, 1, bytes([DOUBLE, 0]))), (20,)), "float"
    yield "a text that is no text", _frame(_stage(QSGD, 0b101, _whole(1), _text(b"\xff"))), "not UTF-8"
    yield "a text of 2^60 bytes", _frame(_stage(QSGD, 0b101, _whole(1), bytes([TEXT]) + varint(1 << 60))), "length"
    yield "an exponent of 10^9", _frame(_stage(THRESHOLD, 1, bytes([DECIMAL, 1]) + varint(10**9))), "exponent"


@attack
def parameter_values() -> Frames:
    for bits in (0, 13, 64, 1 << 62):
        yield f"uniform of {bits} bits", _frame(_stage(UNIFORM, 1, _whole(bits))), "bits must be"
    yield "uniform of -1 bits", _frame(_stage(UNIFORM, 1, bytes([NEGATIVE, 0]))), "bits must be"
    for value in (b"\x00", b"\x02", _double(4.0), _text(b"4"), bytes([CODEC]) + _spec(_stage(RAW))):
        yield f"uniform of {value.hex()}", _frame(_stage(UNIFORM, 1, value)), "bits must be"
    for levels in (0, 2048, 1 << 40):
        yield f"qsgd of {levels} levels", _frame(_stage(QSGD, 1, _whole(levels))), "levels must be"
    yield "qsgd with a bucket of 2^40", _frame(_stage(QSGD, 3, _whole(1), _whole(1 << 40))), "bucket must be"
    yield "qsgd with another norm", _frame(_stage(QSGD, 5, _whole(1), _text(b"l7"))), "norm must be"
    for ratio in (float("nan"), float("inf"), -0.5, 0.0, 1.5):
        yield f"topk of {ratio}", _frame(_stage(TOPK, 1, _double(ratio))), "ratio must be"
        yield f"randk of {ratio}", _frame(_stage(RANDK, 1, _double(ratio))), "ratio must be"
    for level in (float("nan"), float("inf"), -1.0):
        yield f"threshold of {level}", _frame(_stage(THRESHOLD, 1, _double(level))), "level must be"
    yield "threshold of 10^500", _frame(_stage(THRESHOLD, 1, bytes([DECIMAL, 1]) + varint(1000))), "level must be"
    yield "topk of nothing", _frame(_stage(TOPK)), "give a ratio or k"
    yield "topk of both", _frame(_stage(TOPK, 3, _double(0.5), _whole(1))), "give a ratio or k"
    for value in (_text(b"x"), b"\x00", _double(3.5), b"\x02", _whole(10), bytes([NEGATIVE, 4])):
        yield f"deflate level {value.hex()}", _frame(_stage(RAW), _stage(DEFLATE, 1, value)), "level|deflate"
    for value in (_text(b"x"), b"\x00", _double(3.5), b"\x02", _whole(23), _whole(0)):
        yield f"zstd level {value.hex()}", _frame(_stage(RAW), _stage(ZSTD, 1, value)), "level|zstd"


@attack
def nested_specs() -> Frames:
    for depth in (1, 2, MAX_DEPTH - 1):
        yield f"positions that are no positions, {depth} deep", _frame(_nested(depth + 1)), "positions must be"
    for depth in (MAX_DEPTH + 1, 100, 5000):
        yield f"{depth} deep", _frame(_nested(depth + 1)), "deep"
    wide = _spec(*[_stage(GOLOMB)] * MAX_STAGES)
    yield "a pipeline of positions", _frame(_stage(TOPK, 6, _whole(1), bytes([CODEC]) + wide)), "positions"
