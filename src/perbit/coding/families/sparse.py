"""Sparsifiers: keep some values, send where they were, hand them to the next stage."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from perbit import parallel
from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import Codec, FloatCodec, PositionCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.families.counted import Counted, check_chunk
from perbit.coding.families.positions import Golomb
from perbit.coding.families.sorting import SortingCodec, paid_positions
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size
from perbit.errors import EncodeError, NonFiniteError
from perbit.kernels import K
from perbit.kernels.api import F32, U32

MAX_SPARSE = 1 << 32  # positions are 32-bit numbers
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
_PLACED = 1 << 16  # values put where they belong at a time: numpy makes wide copies of their positions
DENSIFYING = 8 * _PLACED  # bytes that takes
SAMPLE = 1 << 14  # values that the threshold of a sampled top-k is guessed from


def kept(n: int, ratio: float | None, k: int | None) -> int:
    """How many of n values to keep: k, or the ratio of them, at least one."""
    if n == 0:
        return 0
    return min(n, k) if k is not None else max(1, round((ratio or 0) * n))


def check_amount(codec: Codec, ratio: Any, k: Any) -> None:
    """A sparsifier keeps a ratio or a count. `topk(100)` means a count."""
    if isinstance(ratio, int) and not isinstance(ratio, bool) and k is None:
        object.__setattr__(codec, "k", ratio)
        object.__setattr__(codec, "ratio", None)
        ratio, k = None, ratio
    if (ratio is None) == (k is None):
        raise ValueError(f"give a ratio or k, e.g. {codec.name}(0.01) or {codec.name}(k=100)")
    if ratio is not None and not (isinstance(ratio, float) and 0 < ratio <= 1):
        raise ValueError(f"ratio must be above 0 and at most 1, got {ratio}")
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise ValueError(f"k must be a whole number of at least 1, got {k}")


def check_size(n: int) -> None:
    if n > MAX_SPARSE:
        raise EncodeError(f"sparse codecs hold at most 2^32 values, got {n}; split the tensor")


def decode_sparse(src: Reader, n: int, coder: PositionCodec, rest: Rest) -> tuple[U32, F32]:
    count = src.varint("number of kept values", n)
    src.spend(Cost(0, 8 * count))  # to put them where they belong
    if isinstance(rest.head, SortingCodec):
        return rest.head.decode_at(src, n, count, coder)
    data = paid_positions(src, n, count, coder)
    values = rest.decode_floats(src, (count,))  # first: all stages are paid for before any of them takes memory
    return coder.decode(data, n, count), values


def densify(positions: U32, values: F32, shape: Shape) -> F32:
    out = np.zeros(size(shape), np.float32)
    for lo, hi in parallel.chunks(positions.size, _PLACED):
        out[positions[lo:hi]] = values[lo:hi]
    return out.reshape(shape)


class Sparsifier(FloatCodec):
    """Keeps the values at some positions of its own choice."""

    gives = "floats"
    works_afar = True
    finds_nonfinite = True  # NaN and infinity are larger than any number, so they are among the values kept
    positions: PositionCodec

    @abstractmethod
    def select(self, values: Floats) -> U32:
        """The positions to keep, ascending."""

    def growth(self, n: int) -> float:
        return 1.0

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        check_size(values.n)
        positions = self.select(values)
        chosen = values.at(positions)
        if chosen.range[2]:
            raise NonFiniteError("NaN or infinity")
        data, found = self.positions.transmit(positions, values.n, key)
        if found is not positions:
            chosen = values.at(found)
        out.varint(found.size)
        if isinstance(rest.head, SortingCodec):  # it may send the positions in the order of the values
            rest.head.encode_at(chosen.flat, found, data, values.n, self.positions, out)
            return
        out.section(data)
        rest.encode_floats(chosen, out, key)

    def cost(self, shape: Shape) -> Cost:
        return Cost(4 * size(shape) + DENSIFYING, size(shape))

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        return densify(*decode_sparse(src, size(shape), self.positions, rest), shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        K.scatter_add(out, *decode_sparse(src, size(shape), self.positions, rest), weight)


@register
@dataclass(frozen=True)
class TopK(Sparsifier):
    """The k largest magnitudes; ties go to the lowest position. method="sampled" guesses the threshold from a sample.

    Args:
        ratio: the share of the values that is kept, up to 1.0 for all; `topk(0.01)` keeps one in a hundred.
            A whole number is taken for k: `topk(1)` keeps one value.
        k: how many values are kept, in place of a share.
        positions: how the positions are written: golomb (default), raw32, bitmap, rle, huffgaps, gaps, eliasfano, counted, bloom, or auto:
            the smallest of them.
        method: "exact", or "sampled": faster, a few values more or fewer.
        chunk: the share or k is that of every so many values, up to 65536: `topk(k=64, chunk=4096)`. The last, shorter chunk keeps its share,
            at least one value. Positions are then coded by `counted` unless another coder than golomb is asked for.
    """

    ratio: float | None = None
    k: int | None = None
    positions: PositionCodec = Golomb()
    method: str = "exact"
    chunk: int | None = None

    name = "topk"
    wire_id = 4
    examples = (
        "topk(0.05) | fp16",
        "topk(k=3)",
        "topk(0.1) | qsgd(15) | rans",
        'topk(0.1, method="sampled")',
        "topk(k=4, chunk=64) | uniform(2)",
    )

    def __post_init__(self) -> None:
        check_amount(self, self.ratio, self.k)
        check_positions(self.positions)
        if self.chunk is not None:
            self._check_chunks(self.chunk)
        if self.method not in ("exact", "sampled"):
            raise ValueError(f'method must be "exact" or "sampled", got {self.method!r}')

    def _check_chunks(self, chunk: int) -> None:
        check_chunk(chunk)
        if self.k is not None and self.k > chunk:
            raise ValueError(f"a chunk of {chunk} values has no {self.k} to keep")
        if self.method != "exact":
            raise ValueError("chunks are searched exactly; leave method out")
        if self.positions == Golomb():
            object.__setattr__(self, "positions", Counted(chunk))

    def omega(self, n: int) -> float:
        least = min((self._kept_of(size) / size for size in self._sizes(n)), default=1.0)
        return max(1 - least, self.positions.omega(n))

    def passes_on(self, n: int) -> int:
        return self.positions.found(self._kept_in_all(n), n)

    def select(self, values: Floats) -> U32:
        if self.chunk is not None:
            return self._selected_by_chunk(values.flat, self.chunk)
        k = self._kept_of(values.n)
        return values.top_k(k) if self.method == "exact" else sampled_top_k(values, k)

    def _selected_by_chunk(self, values: F32, chunk: int) -> U32:
        positions, end = np.empty(self._kept_in_all(values.size), np.uint32), 0
        for lo, hi in parallel.chunks(values.size, chunk):
            begin, end = end, end + self._kept_of(hi - lo)
            np.add(K.top_k(values[lo:hi], end - begin), np.uint32(lo), out=positions[begin:end])
        return positions

    def _kept_in_all(self, n: int) -> int:
        if self.chunk is None:
            return self._kept_of(n)
        full, rest = divmod(n, self.chunk)
        return full * self._kept_of(self.chunk) + self._kept_of(rest)

    def _sizes(self, n: int) -> set[int]:
        """The lengths of what each keeps its share."""
        return {n} - {0} if self.chunk is None else {min(n, self.chunk), n % self.chunk} - {0}

    def _kept_of(self, n: int) -> int:
        """How many of the n values of a chunk, or of a tensor without chunks, are kept."""
        if self.chunk is None or self.k is None or n == 0:
            return kept(n, self.ratio, self.k)
        return max(1, round(self.k * n / self.chunk))


@register
@dataclass(frozen=True)
class Threshold(Sparsifier):
    """All values with a magnitude of at least `level`.

    Args:
        level: the least magnitude that is kept.
        positions: how the positions are written: golomb (default), raw32, bitmap, rle, huffgaps, gaps, eliasfano, counted, bloom, or auto:
            the smallest of them.
    """

    level: float
    positions: PositionCodec = Golomb()

    name = "threshold"
    wire_id = 6
    examples = ("threshold(0.5)", "threshold(0.01) | uniform(4) | huffman")

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", float(self.level))
        if not 0 <= self.level < float("inf"):
            raise ValueError(f"level must be a number of at least 0, got {self.level}")
        check_positions(self.positions)

    def omega(self, n: int) -> float:
        return max(1.0, self.positions.omega(n))

    def select(self, values: Floats) -> U32:
        return values.above(self.level)


@register
@dataclass(frozen=True)
class Nonzero(Sparsifier):
    """All values but zeros, for tensors that are sparse by nature, as the gradients of embeddings are. Exact.

    Args:
        positions: how the positions are written: golomb (default), raw32, bitmap, rle, huffgaps, gaps, eliasfano, counted, bloom, or auto:
            the smallest of them.
    """

    positions: PositionCodec = Golomb()

    name = "nonzero"
    wire_id = 30
    examples = ("nonzero", "nonzero | qsgd(15) | rans")

    def __post_init__(self) -> None:
        check_positions(self.positions)

    @property
    def unbiased(self) -> bool:
        return self.positions.exact

    def omega(self, n: int) -> float:
        return self.positions.omega(n)

    def select(self, values: Floats) -> U32:
        return values.above(SMALLEST)


def sampled_top_k(values: Floats, k: int) -> U32:
    """k positions above a threshold guessed from a sample; the smallest of those above it make way.

    The guess is a little low, so that one pass finds enough; where the sample misled, all values are searched instead.
    """
    stride = max(1, values.n // SAMPLE)
    sample = np.sort(np.abs(values.every(stride)))
    if sample.size == 0 or not np.isfinite(sample[-1]):
        return values.top_k(k)
    rank = k * sample.size / max(1, values.n)
    aimed = min(sample.size, round(rank + 3 * rank**0.5))
    candidates = values.above(float(sample[-max(1, aimed)]))
    if candidates.size < k:
        return values.top_k(k)
    return candidates[values.at(candidates).top_k(k)]


def check_positions(coder: object) -> None:
    if not isinstance(coder, PositionCodec):
        raise ValueError(f"positions must be a position coder such as golomb or bitmap, got {coder}")
