"""Number formats: floats to bytes, value by value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perbit.coding.arrays import from_bf16, round_to_bf16
from perbit.coding.bits import Reader, Writer, bytes_of
from perbit.coding.codec import FloatCodec, Rest, checked_finite
from perbit.coding.cost import Cost
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.parallel import chunks


@register
@dataclass(frozen=True)
class Raw(FloatCodec):
    """The values as they are, in their own type; the only codec for integers."""

    name = "raw"
    wire_id = 1
    examples = ("raw",)
    gives = "bytes"

    @property
    def unbiased(self) -> bool:
        return True

    def omega(self, n: int) -> float:
        return 0.0

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        rest.encode_bytes(bytes_of(values.flat.astype("<f4", copy=False)), out)

    def cost(self, shape: Shape) -> Cost:
        return Cost(6 * size(shape), 2 * size(shape))

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        return rest.decode_floats(src, shape)


@register
@dataclass(frozen=True)
class Fp16(FloatCodec):
    """IEEE half precision, rounded to nearest; values beyond ±65504 saturate."""

    name = "fp16"
    wire_id = 2
    examples = ("fp16",)
    gives = "bytes"

    def omega(self, n: int) -> float:
        return 1.0  # values below 6e-8 vanish; within the normal range the error is at most 2^-22 |x|²

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        half = np.empty(values.n, np.uint16)
        K.to_half(values.flat, half)
        rest.encode_bytes(bytes_of(half), out)

    def cost(self, shape: Shape) -> Cost:
        return Cost(4 * size(shape), 2 * size(shape))

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        values = np.empty(size(shape), np.float32)
        K.from_half(rest.decode_bytes(src, 2 * values.size), values)
        return values.reshape(shape)


@register
@dataclass(frozen=True)
class Bf16(FloatCodec):
    """The upper half of a float32, rounded to nearest even; the largest values saturate."""

    name = "bf16"
    wire_id = 3
    examples = ("bf16",)
    gives = "bytes"

    def omega(self, n: int) -> float:
        return 2.0**-16  # eight significant bits: relative error at most 2^-8 (not for denormals)

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        upper = np.empty(values.n, "<u2")
        for lo, hi in chunks(values.n):
            upper[lo:hi] = round_to_bf16(values.flat[lo:hi])
        rest.encode_bytes(bytes_of(upper), out)

    def cost(self, shape: Shape) -> Cost:
        return Cost(8 * size(shape), 4 * size(shape))

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        upper = np.frombuffer(rest.decode_bytes(src, 2 * size(shape)), "<u2")
        return checked_finite(from_bf16(upper)).reshape(shape)
