"""The position coder that works out what the others would cost and takes the smallest."""

from __future__ import annotations

from dataclasses import dataclass

from perbit.coding.bits import Piece
from perbit.coding.codec import PositionCodec
from perbit.coding.cost import Cost
from perbit.coding.families.gapcodes import Gaps, HuffGaps
from perbit.coding.families.positions import Bitmap, EliasFano, Golomb, Raw32, Rle
from perbit.coding.registry import register
from perbit.errors import DecodeError
from perbit.kernels.api import U32

_BY_FORMULA = (Raw32(), Bitmap(), EliasFano(), Golomb(), Rle())
_BY_TRIAL = (HuffGaps(), Gaps())  # their size depends on what they learn
_CODERS: dict[int, PositionCodec] = {coder.wire_id: coder for coder in (*_BY_FORMULA, *_BY_TRIAL)}


@register
@dataclass(frozen=True)
class Auto(PositionCodec):
    """Whichever lossless position coder is smallest here; its number comes first.

    >>> import numpy as np
    >>> few, all_ = np.array([7, 900], np.uint32), np.arange(1000, dtype=np.uint32)
    >>> [_CODERS[Auto().encode(positions, 1000)[0]].name for positions in (few, all_)]
    ['eliasfano', 'gaps']
    """

    name = "auto"
    wire_id = 35
    examples = ("topk(0.1, positions=auto)", "nonzero(positions=auto) | fp16")

    def encode(self, positions: U32, n: int) -> bytes:
        cheapest = min(_BY_FORMULA, key=lambda coder: coder.n_bytes(positions, n))
        streams = {coder.wire_id: coder.encode(positions, n) for coder in (cheapest, *_BY_TRIAL)}
        chosen = min(streams, key=lambda number: len(streams[number]))
        return bytes([chosen]) + streams[chosen]

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        return _chosen(data).cost(memoryview(data)[1:], n, count)

    def decode(self, data: Piece, n: int, count: int) -> U32:
        return _chosen(data).decode(memoryview(data)[1:], n, count)


def _chosen(data: Piece) -> PositionCodec:
    coder = _CODERS.get(data[0]) if len(data) else None
    if coder is None:
        raise DecodeError(f"auto: {f'number {data[0]} is no' if len(data) else 'there is no'} position coder")
    return coder
