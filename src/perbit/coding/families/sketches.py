"""SketchML (Jiang et al., 2018) and SKCompress (2020): the values that are not zero as quantile buckets, held by a MinMax sketch.

Magnitudes are cut into buckets of equal count, each sign apart. Buckets are divided into groups; a group codes its own keys and has
its own sketch of `rows` hash tables: inserting keeps the smaller of two buckets, asking takes the largest of the rows, so a collision can only
shrink a value. SketchML packs keys by bytes and cells by bits; SKCompress codes the lengths of the gaps and the cells by Huffman.

Differs from the papers: exact quantiles in place of a quantile sketch, a bucket means the mean of its values, in float32; no bucket spans both signs;
an empty cell holds 0, the most frequent bucket.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.families import keys
from perbit.coding.families.buckets import BucketLayout, quantile_buckets, read_means
from perbit.coding.families.entropy import pack, packed_size, unpack
from perbit.coding.families.sparse import check_size, densify, kept
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size, symbol_dtype
from perbit.errors import DecodeError
from perbit.kernels import K
from perbit.kernels.api import F32, U32, U64, Symbols
from perbit.randomness import hash32

I64 = NDArray[np.int64]
MAX_BINS, MAX_GROUPS, MAX_ROWS = 4096, 256, 4


class QuantileSketch(FloatCodec):
    """What the two methods share."""

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
    def _read_gaps(self, src: Reader, count: int) -> U64: ...

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
        places, n_cells = self._places(positions, group, counts)
        cells = np.full(n_cells, alphabet, np.int64)
        np.minimum.at(cells, places, (buckets[by_group] - layout.firsts[group])[None, :])
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
        gap_src = Reader(src.section("keys"))
        positions = keys.positions_of(self._read_gaps(gap_src, int(counts.sum())), counts, n)
        gap_src.end()
        group = np.repeat(np.arange(counts.size), counts)
        alphabet = int(layout.widths.max(initial=1))
        places, n_cells = self._places(positions, group, counts)
        cells = self._read_cells(src.section("cells"), alphabet, n_cells)
        buckets = layout.firsts[group] + cells[places].max(axis=0, initial=0)
        ends = np.where(layout.firsts < negative, negative, means.size)
        if np.any(buckets >= ends[group]):
            raise DecodeError(f"{self.name}: a cell names a bucket that does not exist")
        order = np.argsort(positions)
        positions = positions[order]
        if np.any(positions[1:] == positions[:-1]):
            raise DecodeError(f"{self.name}: two groups hold the same key")
        return positions, means[buckets[order]]

    def _places(self, positions: U32, group: I64, counts: I64) -> tuple[I64, int]:
        """For every row, the cell of each key; and how many cells there are."""
        columns = np.ceil(self.columns * counts).astype(np.int64)
        base = np.cumsum(self.rows * columns) - self.rows * columns
        own = columns[group]
        rows = [base[group] + row * own + _hash(positions, row, own) for row in range(self.rows)]
        return np.stack(rows), int((self.rows * columns).sum())


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

    def _read_gaps(self, src: Reader, count: int) -> U64:
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

    def _read_gaps(self, src: Reader, count: int) -> U64:
        return keys.read_delta_huffman(src, count)

    def _write_cells(self, cells: Symbols, alphabet: int) -> bytes:
        return keys.huffman_symbols(cells, alphabet)

    def _read_cells(self, data: memoryview, alphabet: int, count: int) -> Symbols:
        return keys.read_huffman_symbols(data, alphabet, count)


def _hash(positions: U32, row: int, columns: I64) -> I64:
    """A column for every key: a 32-bit mixer, scaled to the number of columns."""
    x = hash32(positions ^ np.uint32(0x9E3779B9 * (row + 1) & 0xFFFFFFFF))
    return (x.astype(np.uint64) * columns.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
