"""SketchML (Jiang et al., 2018) and SKCompress (2020): the values that are not zero as quantile buckets, held by a MinMax sketch.

Magnitudes are cut into buckets of equal count, each sign apart. Buckets are divided into groups; a group codes its own keys and has
its own sketch of `rows` hash tables: inserting keeps the smaller of two buckets, asking takes the largest of the rows, so a collision can only
shrink a value. SketchML packs keys by bytes and cells by bits; SKCompress codes the lengths of the gaps and the cells by Huffman.

Differs from the papers: exact quantiles in place of a quantile sketch, a bucket means the mean of its values, in float32; no bucket spans both signs;
an empty cell holds 0, the most frequent bucket.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.families import keys
from perbit.coding.families.buckets import BucketLayout, quantile_buckets, read_means
from perbit.coding.families.entropy import pack, packed_size, unpack
from perbit.coding.families.sparse import DENSIFYING, check_size, densify, kept
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size, symbol_dtype
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import F32, U32, U64, Symbols
from perbit.randomness import hash32

I64 = NDArray[np.int64]
MAX_BINS, MAX_GROUPS, MAX_ROWS = 4096, 256, 4


class QuantileSketch(FloatCodec):
    """What the two methods share.

    Args:
        ratio: the share of the largest values that is kept; without it all that are not zero.
        bins: buckets of values.
        groups: groups of neighbouring buckets, each with a sketch of its own.
        rows: rows of a sketch.
        columns: columns of a sketch, as a share of the keys.
    """

    ratio: float | None
    bins: int
    groups: int
    rows: int
    columns: float
    gives = "coded"

    def __post_init__(self) -> None:
        if self.ratio is not None and not (isinstance(self.ratio, float) and 0 < self.ratio <= 1):
            raise ValueError(
                f"ratio must be above 0 and at most 1, or none for all values that are not zero, got {self.ratio}"
            )
        for name, high in (("bins", MAX_BINS), ("groups", MAX_GROUPS), ("rows", MAX_ROWS)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
                raise ValueError(f"{name} must be 1 to {high}, got {value!r}")
        object.__setattr__(self, "columns", float(self.columns))
        if not 0 < self.columns <= 1:
            raise ValueError(f"columns must be above 0 and at most 1, got {self.columns}")

    @abstractmethod
    def _write_gaps(self, gaps: U64) -> bytes: ...

    @abstractmethod
    def _read_gaps(self, src: Reader, count: int) -> keys.Gaps: ...

    @abstractmethod
    def _write_cells(self, cells: Symbols, alphabet: int) -> bytes: ...

    @abstractmethod
    def _read_cells(self, data: memoryview, alphabet: int, count: int) -> Symbols: ...

    def _select(self, x: F32) -> U32:
        if self.ratio is None:
            return np.flatnonzero(x).astype(np.uint32)
        chosen: U32 = K.top_k(x, kept(x.size, self.ratio, None))
        largest: U32 = chosen[x[chosen] != 0]
        return largest

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        check_size(values.n)
        positions = self._select(values.flat)
        means, buckets, negative = quantile_buckets(values.flat[positions], self.bins)
        layout = BucketLayout(negative, means.size - negative, self.groups)
        group = layout.group_of(buckets)
        by_group = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=layout.widths.size)
        positions, group = positions[by_group], group[by_group]
        out.varint(negative)
        out.varint(layout.positive)
        out.section(means.astype("<f4").tobytes())
        for count in counts.tolist():
            out.varint(count)
        out.section(self._write_gaps(keys.gaps_of(positions, counts)))
        alphabet = int(layout.widths.max(initial=1))
        grid = Grid.of(self, counts)
        cells = np.full(grid.n_cells, alphabet, np.int64)
        np.minimum.at(cells, grid.places(positions, group), (buckets[by_group] - layout.firsts[group])[None, :])
        cells[cells == alphabet] = 0
        out.section(self._write_cells(cells.astype(symbol_dtype(alphabet)), alphabet))

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        return densify(*self._decode_sparse(src, size(shape)), shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        K.scatter_add(out, *self._decode_sparse(src, size(shape)), weight)

    def _decode_sparse(self, src: Reader, n: int) -> tuple[U32, F32]:
        negative = src.varint("number of negative buckets", self.bins)
        layout = BucketLayout(negative, src.varint("number of positive buckets", self.bins), self.groups)
        means = read_means(src.section("buckets"), layout)
        counts = np.array([src.varint("keys of a group", n) for _ in layout.widths], np.int64)
        if counts.sum() > n:
            raise DecodeError(f"{self.name}: {counts.sum()} keys for {n} values")
        src.spend(self._keys_cost(n, int(counts.sum())))
        gap_src = Reader(src.section("keys"))
        gaps = self._read_gaps(gap_src, int(counts.sum()))
        gap_src.end()
        grid = Grid.of(self, counts)
        cells = self._read_cells(src.section("cells"), int(layout.widths.max(initial=1)), grid.n_cells)
        ends = np.where(layout.firsts < negative, negative, means.size)
        found = _Found(int(counts.sum()), n)
        for group, positions in keys.positions_of(gaps, counts, n):
            buckets = layout.firsts[group] + cells[grid.places(positions, group)].max(axis=0, initial=0)
            if np.any(buckets >= ends[group]):
                raise DecodeError(f"{self.name}: a cell names a bucket that does not exist")
            if not found.add(positions, means[buckets]):
                raise DecodeError(f"{self.name}: two groups hold the same key")
        return found.positions, found.values

    def cost(self, shape: Shape) -> Cost:
        return Cost(4 * size(shape) + DENSIFYING, 50_000 + size(shape))

    def _keys_cost(self, n: int, count: int) -> Cost:
        """Classes, cells, positions and values of all keys, what is seen of n values, and some chunks."""
        cells = math.ceil(self.rows * self.columns * count)
        return Cost(9 * count + 2 * cells + n + 256 * keys.CHUNK, (300 + 64 * self.rows) * count)


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the cells of each group are: `rows` hash tables of as many columns as its keys need."""

    rows: int
    columns: I64
    first: I64

    @classmethod
    def of(cls, codec: QuantileSketch, counts: I64) -> Grid:
        columns = np.ceil(codec.columns * counts).astype(np.int64)
        return cls(codec.rows, columns, np.cumsum(codec.rows * columns) - codec.rows * columns)

    @property
    def n_cells(self) -> int:
        return int((self.rows * self.columns).sum())

    def places(self, positions: U32, group: I64 | int) -> I64:
        """For every row, the cell of each key; all are of one group, or each of its own."""
        own, first = np.asarray(self.columns[group]), self.first[group]
        return np.stack([first + row * own + _hash(positions, row, own) for row in range(self.rows)])


class _Found:
    """Keys and their values as they are decoded, none twice."""

    def __init__(self, count: int, n: int) -> None:
        self.positions, self.values = np.empty(count, np.uint32), np.empty(count, np.float32)
        self._seen, self._done = np.zeros(n, np.bool_), 0

    def add(self, positions: U32, values: F32) -> bool:
        """Take different positions; say whether none of them was here before."""
        if self._seen[positions].any():
            return False
        self._seen[positions] = True
        part = slice(self._done, self._done + positions.size)
        self.positions[part], self.values[part] = positions, values
        self._done = part.stop
        return True


@register
@dataclass(frozen=True)
class SketchML(QuantileSketch):
    """Quantile buckets in a MinMax sketch, keys by bytes; of the `ratio` largest values or of all that are not zero."""

    ratio: float | None = None
    bins: int = 256
    groups: int = 8
    rows: int = 2
    columns: float = 0.3

    name = "sketchml"
    wire_id = 52
    examples = ("sketchml", "sketchml(0.1, bins=16, groups=2)")

    def _write_gaps(self, gaps: U64) -> bytes:
        return keys.delta_binary(gaps)

    def _read_gaps(self, src: Reader, count: int) -> keys.Gaps:
        return keys.read_delta_binary(src, count)

    def _write_cells(self, cells: Symbols, alphabet: int) -> bytes:
        return pack(cells, alphabet)

    def _read_cells(self, data: memoryview, alphabet: int, count: int) -> Symbols:
        if len(data) != packed_size(count, alphabet):
            raise DecodeError(f"sketchml: {count} cells need {packed_size(count, alphabet)} bytes, got {len(data)}")
        cells: Symbols = np.empty(count, symbol_dtype(alphabet))
        unpack(data, alphabet, cells)
        return cells


@register
@dataclass(frozen=True)
class SkCompress(QuantileSketch):
    """SketchML with Huffman codes of the buckets and of the lengths of the gaps."""

    ratio: float | None = None
    bins: int = 256
    groups: int = 8
    rows: int = 2
    columns: float = 0.3

    name = "skcompress"
    wire_id = 53
    examples = ("skcompress", "skcompress(0.2, bins=32, groups=4, columns=0.5)")

    def _write_gaps(self, gaps: U64) -> bytes:
        return keys.delta_huffman(gaps)

    def _read_gaps(self, src: Reader, count: int) -> keys.Gaps:
        return keys.read_delta_huffman(src, count)

    def _write_cells(self, cells: Symbols, alphabet: int) -> bytes:
        return keys.huffman_symbols(cells, alphabet)

    def _read_cells(self, data: memoryview, alphabet: int, count: int) -> Symbols:
        return keys.read_huffman_symbols(data, alphabet, count)


def _hash(positions: U32, row: int, columns: I64) -> I64:
    """A column for every key: a 32-bit mixer, scaled to the number of columns."""
    x = hash32(positions ^ np.uint32(0x9E3779B9 * (row + 1) & 0xFFFFFFFF))
    return (x.astype(np.uint64) * columns.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
