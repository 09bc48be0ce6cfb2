"""Specs as bytes: numbers instead of names, parameters at their default left out.

    pipeline = varint count, then count codecs
    codec = varint wire id (0: then a text with the name), varint mask of the parameters that follow, then their values
    value = tag byte and content:  0 none · 1 false · 2 true · 3 whole number ≥ 0 (varint) · 4 whole number < 0 (varint of -1-v)
            5 decimal (varint of the digits, varint zigzag exponent of ten) · 6 the same, negative · 7 float64 (8 bytes) · 8 text · 9 codec

A decimal is written when reading it back gives the same float64, which holds for everything a person types.
"""

from __future__ import annotations

import dataclasses
import struct
from decimal import Decimal
from typing import Any

from perbit.coding import registry
from perbit.coding.bits import Reader, varint
from perbit.coding.codec import Codec, parameters, same_parameter, stages_of
from perbit.coding.cost import TO_NAME
from perbit.coding.spec import MAX_DEPTH, MAX_STAGES, assemble, construct
from perbit.errors import DecodeError, SpecError

_NONE, _FALSE, _TRUE, _WHOLE, _NEGATIVE, _DECIMAL, _NEGATIVE_DECIMAL, _DOUBLE, _TEXT, _CODEC = range(10)
MAX_NAME = 100
MAX_BYTES = 1 << 16  # of all specs of a frame: reading them takes time that their compressed size does not show


def write_spec(codec: Codec) -> bytes:
    """The bytes of a codec.

    >>> import perbit
    >>> len(write_spec(perbit.codec("uniform(4) | rans")))
    7
    """
    stages = stages_of(codec)
    return varint(len(stages)) + b"".join(map(_write_codec, stages))


def _write_codec(codec: Codec) -> bytes:
    mask, values = 0, b""
    for index, field in enumerate(parameters(type(codec))):
        value = getattr(codec, field.name)
        if field.default is dataclasses.MISSING or not same_parameter(value, field.default):
            mask |= 1 << index
            values += _write_value(value)
    name = b"" if codec.wire_id else _write_text(codec.name)
    return varint(codec.wire_id) + name + varint(mask) + values


def _write_text(text: str) -> bytes:
    data = text.encode()
    return varint(len(data)) + data


def _write_value(value: Any) -> bytes:
    if value is None:
        return bytes([_NONE])
    if isinstance(value, bool):
        return bytes([_TRUE if value else _FALSE])
    if isinstance(value, int):
        return bytes([_WHOLE]) + varint(value) if value >= 0 else bytes([_NEGATIVE]) + varint(-1 - value)
    if isinstance(value, float):
        return _write_float(value)
    if isinstance(value, str):
        return bytes([_TEXT]) + _write_text(value)
    if isinstance(value, Codec):
        return bytes([_CODEC]) + write_spec(value)
    raise SpecError(f"a parameter must be a number, a text, a truth value, none or a codec, got {type(value).__name__}")


def _write_float(value: float) -> bytes:
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    mantissa = int("".join(map(str, digits)))
    if not isinstance(exponent, int) or mantissa >= 1 << 40 or (sign and not mantissa):
        return bytes([_DOUBLE]) + struct.pack("<d", value)
    zigzag = 2 * exponent if exponent >= 0 else -2 * exponent - 1
    return bytes([_NEGATIVE_DECIMAL if sign else _DECIMAL]) + varint(mantissa) + varint(zigzag)


def read_spec(src: Reader) -> Codec:
    """Read the codec that `write_spec` wrote."""
    return read_specs(src, 1)[0]


def read_specs(src: Reader, count: int) -> list[Codec]:
    """Read several codecs in a row, which have at most MAX_BYTES together."""
    window = Reader(src.view[src.position : src.position + MAX_BYTES], src.budget)
    codecs = [_read_pipeline(window, 0) for _ in range(count)]
    src.take(window.position, "specs")
    return codecs


def _read_pipeline(src: Reader, depth: int) -> Codec:
    if depth > MAX_DEPTH:
        raise DecodeError(f"spec: codecs nest more than {MAX_DEPTH} deep")
    count = src.varint("number of stages", MAX_STAGES)
    if count == 0:
        raise DecodeError("spec: no stages")
    try:
        return assemble([_read_codec(src, depth) for _ in range(count)])
    except SpecError as error:
        raise DecodeError(f"spec: {error}") from error


def _read_codec(src: Reader, depth: int) -> Codec:
    src.spend(TO_NAME)
    wire_id = src.varint("codec id")
    if wire_id:
        cls = registry.by_id(wire_id)
        missing = f"codec number {wire_id} is unknown; the frame comes from a newer perbit"
    else:
        name = _read_text(src)
        cls = registry.by_name(name)
        missing = f"codec {name!r} is unknown; install the package that offers it"
        if cls is not None and cls.wire_id:
            raise DecodeError(f"spec: codec {name!r} must be named by its number")
    if cls is None:
        raise DecodeError(f"spec: {missing}")
    fields = parameters(cls)
    mask = src.varint("parameter mask")
    if mask >> len(fields):
        raise DecodeError(f"spec: {cls.name} has {len(fields)} parameters, the mask names more")
    given = {field.name: _read_value(src, depth) for index, field in enumerate(fields) if mask >> index & 1}
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in given:
            raise DecodeError(f"spec: {cls.name} needs {field.name!r}")
    return construct(cls, given)


def _read_text(src: Reader) -> str:
    data = src.take(src.varint("length of a text", MAX_NAME), "text")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise DecodeError("spec: a text is not UTF-8") from None


def _read_value(src: Reader, depth: int) -> Any:
    tag = src.byte("parameter")
    if tag in (_NONE, _FALSE, _TRUE):
        return {_NONE: None, _FALSE: False, _TRUE: True}[tag]
    if tag == _WHOLE:
        return src.varint("whole number")
    if tag == _NEGATIVE:
        return -1 - src.varint("whole number")
    if tag in (_DECIMAL, _NEGATIVE_DECIMAL):
        digits, zigzag = src.varint("digits"), src.varint("exponent", 1000)
        exponent = zigzag // 2 if zigzag % 2 == 0 else -(zigzag + 1) // 2
        return float(f"{'-' if tag == _NEGATIVE_DECIMAL else ''}{digits}e{exponent}")
    if tag == _DOUBLE:
        return float(struct.unpack("<d", src.take(8, "float"))[0])
    if tag == _TEXT:
        return _read_text(src)
    if tag == _CODEC:
        return _read_pipeline(src, depth + 1)
    raise DecodeError(f"spec: unknown parameter tag {tag}")
