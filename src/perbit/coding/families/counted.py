"""The position coder for chunks that hold equally many: what `topk(k=64, chunk=4096)` finds costs 7.37 bits a position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from perbit.coding.bits import Piece, Reader, Writer
from perbit.coding.codec import PositionCodec
from perbit.coding.cost import Cost
from perbit.coding.registry import register
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import U32

MAX_CHUNK = 1 << 16
_LARGEST_MEAN = 1023  # that the code of counts can begin with
Decoded = TypeVar("Decoded")


@register
@dataclass(frozen=True)
class Counted(PositionCodec):
    """Arithmetic code in chunks that say first how many positions they hold: the optimum for random positions, given these counts.

    Counts are one number if all chunks hold equally many, as those of `topk(k=64, chunk=4096)` do; otherwise each of them is coded.

    Args:
        chunk: how many values make a chunk, 1 to 65536; the last one may be shorter.
    """

    chunk: int = 4096

    name = "counted"
    wire_id = 37
    examples = ("topk(0.1, positions=counted)", "topk(k=9, chunk=64, positions=counted(64)) | uniform(2)")

    def __post_init__(self) -> None:
        check_chunk(self.chunk)

    def encode(self, positions: U32, n: int) -> bytes:
        chunks = -(-n // self.chunk)
        counts = np.bincount(positions // np.uint32(self.chunk), minlength=chunks).astype(np.uint32)
        out = Writer()
        each, full = int(counts[0]) if n >= self.chunk else 0, n // self.chunk
        if np.all(counts[:full] == each):
            out.varint(each + 1)
        else:
            out.varint(0)
            out.section(K.levels_encode(counts, 0, _mean(positions.size, chunks)))
        out.raw(K.counted_encode(positions, counts, self.chunk, n))
        return out.join()

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        """A decision for each value, and a count for each chunk."""
        chunks = -(-n // self.chunk)
        return Cost(4 * count + 12 * chunks, 4 * n + 64 * chunks)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        src = Reader(data)
        counts = self._counts(src, n, count)
        rest = src.take(src.remaining, "counted: positions")
        return _checked(lambda: K.counted_decode(rest, counts, self.chunk, n))

    def _counts(self, src: Reader, n: int, count: int) -> U32:
        """How many positions every chunk holds, `count` in all."""
        chunks, full = -(-n // self.chunk), n // self.chunk
        counts = np.zeros(chunks, np.uint32)
        each = src.varint("counted: positions of a chunk", self.chunk + 1) - 1
        if each < 0:
            data = src.section("counted: counts")
            _checked(lambda: K.levels_decode(data, 0, _mean(count, chunks), counts))
        else:
            counts[:full] = each
            counts[full:] = max(0, count - full * each)
        if int(counts.sum(dtype=np.uint64)) != count:
            raise DecodeError(f"counted: the chunks do not hold {count} positions")
        return counts


def check_chunk(chunk: object) -> None:
    if not isinstance(chunk, int) or isinstance(chunk, bool) or not 1 <= chunk <= MAX_CHUNK:
        raise ValueError(f"chunk must be a number of values from 1 to {MAX_CHUNK}, got {chunk}")


def _checked(decoded: Callable[[], Decoded]) -> Decoded:
    try:
        return decoded()
    except ValueError as error:
        raise DecodeError(f"counted: {error}") from error


def _mean(count: int, chunks: int) -> int:
    """What counts are at first thought to be, in 1/256."""
    return 256 * min(_LARGEST_MEAN, count // max(1, chunks))
