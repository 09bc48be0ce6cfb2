"""What curve-fitting codecs share: values are sorted, so their order must travel; alone, or inside the positions of a sparsifier."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, PositionCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.families.order import (
    I64,
    decode_order,
    encode_order,
    index_width,
    order_bytes,
    pack_words,
    unpack_words,
    words_bytes,
)
from perbit.coding.families.positions import Raw32
from perbit.coding.values import Floats, Shape, size
from perbit.errors import DecodeError
from perbit.kernels.api import F32, U32

ORDERS = ("auto", "packed", "blocks", "positions")
_ASCENDING, _BY_VALUE = 0, 1


class SortingCodec(FloatCodec):
    """Codes ascending values.

    Their order is coded by itself (`packed`, `blocks`), or a sparsifier sends its positions in the order of the values (`positions`;
    `packed` where there is no sparsifier before it); `auto` takes the smallest.
    """

    gives = "coded"
    order: str

    @abstractmethod
    def encode_sorted(self, ascending: F32, out: Writer) -> None: ...

    @abstractmethod
    def decode_sorted(self, src: Reader, n: int) -> F32: ...

    def cost(self, shape: Shape) -> Cost:
        """The order, by words of 64 bits that are unpacked bit by bit, and a curve in double precision."""
        return Cost(128 * size(shape) + (1 << 24), 600 * size(shape))

    @property
    def _own_order(self) -> str:
        return "packed" if self.order == "positions" else self.order

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        order = np.argsort(values.flat, kind="stable")
        out.section(encode_order(order, self._own_order))
        self.encode_sorted(values.flat[order], out)

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        order = decode_order(src.section("order"), size(shape))
        out = np.empty(order.size, np.float32)
        out[order] = self.decode_sorted(src, order.size)
        return out.reshape(shape)

    def encode_at(self, values: F32, positions: U32, coded: bytes, n: int, coder: PositionCodec, out: Writer) -> None:
        """Values and their ascending positions below n (already `coded`), the order in whichever of the two is smaller."""
        width = _position_width(n, coder)
        by_value = words_bytes(positions.size, width)
        if self.order == "positions" or (
            self.order == "auto" and by_value < len(coded) + order_bytes(positions.size, "auto")
        ):
            order: I64 = np.argsort(values, kind="stable")
            out.varint(_BY_VALUE)
            out.section(pack_words(positions[order].astype(np.uint64), width))
            self.encode_sorted(values[order], out)
        else:
            out.varint(_ASCENDING)
            out.section(coded)
            self.encode(Floats(values), Rest(()), out, 0)

    def decode_at(self, src: Reader, n: int, count: int, coder: PositionCodec) -> tuple[U32, F32]:
        """Ascending positions and the values there."""
        if src.varint("order of the positions", _BY_VALUE) == _ASCENDING:
            data = paid_positions(src, n, count, coder)
            src.spend(self.cost((count,)))
            return coder.decode(data, n, count), self.decode(src, (count,), Rest(()))
        src.spend(self.cost((count,)))
        found = unpack_words(src.section("positions"), _position_width(n, coder), count).astype(np.int64)
        order = np.argsort(found, kind="stable")
        ascending = found[order]
        if count and (int(ascending[-1]) >= n or np.any(ascending[1:] == ascending[:-1])):
            raise DecodeError(f"positions by value: {count} different positions below {n} are needed")
        return ascending.astype(np.uint32), self.decode_sorted(src, count)[order]


def paid_positions(src: Reader, n: int, count: int, coder: PositionCodec) -> memoryview:
    """The section of positions, paid for and still to be decoded."""
    data = src.section("positions")
    src.spend(coder.cost(data, n, count))
    return data


def _position_width(n: int, coder: PositionCodec) -> int:
    return 32 if isinstance(coder, Raw32) else index_width(n)


def check_order(order: object) -> None:
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
