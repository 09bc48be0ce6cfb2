"""Short cuts for the commonest small tensors: raw, or by QSGD with one norm and a symbol coder.

The same kernels and the same coder run, so the bytes are those of the long way (a test compares them); what is left out is
the machinery around them, which for a few hundred values costs far more than the coding itself. The sender's value comes
from the symbols it just coded instead of from decoding its own frame.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from perbit.coding.bits import Reader, Writer, bytes_of
from perbit.coding.codec import Pipeline, Rest, SymbolCoder, checked_finite
from perbit.coding.families.entropy import Pack
from perbit.coding.families.formats import Raw
from perbit.coding.families.qsgd import Qsgd, bucket_scales, write_norms
from perbit.coding.values import Floats, Prior, symbol_dtype
from perbit.errors import DecodeError
from perbit.kernels import CHUNK, K
from perbit.kernels.api import F32
from perbit.randomness import fold


class Shortcut(Protocol):
    """What a short cut does."""

    def encode(self, x: F32, out: Writer, key: int) -> F32 | None:
        """Write the payload of x and give its decoded value; None if x is not finite (the long way has the words for it)."""
        ...

    def decode(self, src: Reader) -> F32:
        """Read what `encode` wrote."""
        ...


@dataclass(frozen=True, eq=False)
class AsItIs:
    """A raw vector of one length."""

    n: int

    def encode(self, x: F32, out: Writer, key: int) -> F32 | None:
        if K.scan(x)[2]:
            return None
        out.section(bytes_of(x.astype("<f4", copy=False)))
        return x.copy()

    def decode(self, src: Reader) -> F32:
        data = src.section("values")
        if len(data) != 4 * self.n:
            raise DecodeError(f"expected {4 * self.n} bytes, got {len(data)}")
        return checked_finite(np.frombuffer(data, "<f4").astype(np.float32))


@dataclass(frozen=True, eq=False)
class OneNorm:
    """Everything about one QSGD, its coder and one length that does not change from frame to frame."""

    n: int
    quantizer: Qsgd
    rest: Rest
    coder: SymbolCoder
    prior: Prior | None
    table: F32

    def encode(self, x: F32, out: Writer, key: int) -> F32 | None:
        if K.scan(x)[2]:
            return None
        levels, n = self.quantizer.levels, self.n
        norm, side = write_norms(K.bucket_norms(x, n, self.quantizer.norm))
        scale = bucket_scales(norm, levels)
        symbols = np.empty(n, symbol_dtype(2 * levels + 1))
        K.quantize_levels_random(x, scale, n, levels, fold(key, 1), 0, symbols)
        out.section(side)
        out.section(*self.rest.encode_symbols(symbols, 2 * levels + 1, self.prior))
        value = np.empty(n, np.float32)
        K.dequantize(symbols, self.table * norm[0], value)
        return value

    def decode(self, src: Reader) -> F32:
        data = src.section("norms")
        if len(data) != 4:
            raise DecodeError(f"qsgd: 1 norms need 4 bytes, got {len(data)}")
        norm = struct.unpack("<f", data)[0]
        if not 0 <= norm < math.inf:
            raise DecodeError("qsgd: a norm is negative or not finite")
        value = np.empty(self.n, np.float32)
        self.coder.decode_table(src.section("symbols"), self.table * np.float32(norm), self.prior, value)
        return value


def shortcut_for(pipeline: Pipeline, n: int) -> Shortcut | None:
    """The short cut for a pipeline, where there is one."""
    first = pipeline.stages[0]
    if isinstance(first, Raw) and 0 < n <= CHUNK and len(pipeline.stages) == 1:
        return AsItIs(n)
    fits = isinstance(first, Qsgd) and 0 < n <= CHUNK and (first.bucket == 0 or first.bucket >= n)
    if not fits or len(pipeline.stages) > 2 or not isinstance(first, Qsgd):
        return None
    rest = Rest(pipeline.stages[1:])
    coder = rest.head if isinstance(rest.head, SymbolCoder) else Pack()
    s = first.levels
    table = (np.arange(-s, s + 1) / s).astype(np.float32)
    prior = first.quantize(Floats(np.zeros(n, np.float32)), 0).prior
    return OneNorm(n, first, rest, coder, prior, table)
