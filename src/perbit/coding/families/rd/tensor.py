"""One tensor: what is found out about it once, how it is written at a step, and how it is read.

    payload  = byte head: 8 if all is zero, and nothing follows; else the sum of 1 with outliers, 2 by frequency (planes.py), 4 with components
               outliers: varint how many, a section with their positions, then 4 bytes for each value
               components: varint rank, a byte for the coarseness, 2 bytes for each one's length, left and right vectors as one part
               residual: a part; by frequency: for each plane a byte that says which class it is in, then a part for each class

Planes are matrices (rows, columns) that share left vectors; right vectors come plane by plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perbit import kernels, parallel
from perbit.coding.bits import Piece, Reader, Writer, bytes_of
from perbit.coding.codec import checked_finite
from perbit.coding.cost import Cost
from perbit.coding.families.lowrank import matrix_shape
from perbit.coding.families.rd import factors, judging, parts, planes
from perbit.coding.families.rd.factors import Choice
from perbit.coding.families.rd.trellis import SLOPE, largest_magnitude
from perbit.coding.values import Shape, size
from perbit.errors import DecodeError
from perbit.kernels import CHUNK, K, fused
from perbit.kernels.api import F32, U32
from perbit.randomness import fold

_OUTLIERS, _BY_FREQUENCY, _COMPONENTS, _ALL_ZERO = 1, 2, 4, 8  # of a head
CLASSES = 3  # of planes with about the same energy
_FEWEST_IN_CLASS = 2048
_SAMPLE = 4096  # values for an estimate
_LARGEST_SUMMED = 1e36  # sums of larger values might overflow
_MODERATE = 2.0**40  # the largest value, or the inverse of the smallest, whose squares need no scale
_NO_TRANSFORM: F32 = np.empty(0, np.float32)
_TINIEST = -120  # as a power of two: the inverse of a scale is a float32


Judged = tuple[Choice | None, float, float]  # the components worth sending, and about the error, in steps, and the bits


class Tensor:
    """A tensor to be coded, perhaps at several steps; at most so many components are looked for."""

    def __init__(self, array: F32, most: int) -> None:
        self.flat, self.most, self.shape = array.reshape(-1), most, array.shape
        self._looked: dict[int, factors.Found | None] = {}
        self._choices: dict[float, Judged | None] = {}
        self.slope = SLOPE  # what a bit may cost, in squares of the step: a residual that is not worth it is left out
        self._written: dict[tuple[float, int | None, float], list[Piece]] = {}

    @cached_property
    def _moments(self) -> tuple[float, float]:
        """The sum of squares, and the largest magnitude."""
        _, _, energy, largest, _ = K.moments(self.flat)
        return energy, largest

    @property
    def energy(self) -> float:
        """The sum of squares."""
        return self._moments[0]

    @cached_property
    def checksum(self) -> int:
        """Of the values: whether an array is still the one that was looked at."""
        return K.crc32c(bytes_of(self.flat))

    @property
    def largest(self) -> float:
        return self._moments[1]

    @cached_property
    def _top(self) -> float:
        """A power of two above every value."""
        return float(2.0 ** max(_TINIEST, np.frexp(self.largest)[1])) if self.largest else 1.0

    @property
    def _scale(self) -> float:
        """Divided by it, squares of values neither overflow nor vanish: 1 where they do neither anyway."""
        return 1.0 if 1 / _MODERATE <= self._top <= _MODERATE else self._top

    @cached_property
    def _planes(self) -> Planes:
        """The tensor, scaled, as planes."""
        scaled, taps = self.flat, planes.taps_of(self.shape)
        if self._scale != 1.0:
            scaled = scaled * np.float32(1 / self._scale)
        if taps and 0 < self.largest < _LARGEST_SUMMED:
            found = planes.by_frequency(scaled, taps)
            energies, largest = planes.energies(found)
            if planes.is_worth_it(energies):
                return Planes(found, True, largest * self._scale)
        return Planes(scaled[None], False, self.largest)

    def _choice(self, step: float) -> Judged | None:
        """The components worth sending, if any are looked for: a search that has looked at a step mostly writes it too."""
        if step not in self._choices:
            self._choices[step] = self._chosen(step)
        return self._choices[step]

    def _chosen(self, step: float) -> Judged | None:
        """Of a large matrix more components are looked for only as long as most of those found are worth it."""
        chosen: Judged | None = None
        for most in (factors.FEW, 2 * factors.FEW, factors.MOST):
            found = self._found(min(most, self.most))
            chosen = found.choice(step) if found else None
            if not (found and chosen and chosen[0]) or found.is_all or chosen[0].rank <= most / 2 or most >= self.most:
                break
        return chosen

    def _found(self, most: int) -> factors.Found | None:
        of = self._matrix
        if of and min(of.rows, of.columns) <= factors.ALL:
            most = self.most  # they are found all together
        if most not in self._looked:
            self._looked[most] = factors.Found(of, most) if of and most else None
        return self._looked[most]

    @cached_property
    def _matrix(self) -> factors.Matrix | None:
        """What components are looked for in, if that may pay."""
        layout = Layout.of(self.shape, self._planes.by_frequency)
        if 0 < self.largest < _LARGEST_SUMMED and factors.may_pay(layout.rows, layout.planes * layout.columns):
            return factors.Matrix(layout.matrix(self._planes.values), self._scale, self._top / self._scale)
        return None

    def estimate(self, step: float) -> tuple[float, float]:
        """About how large the squared error becomes at this step, and how many bytes there are; a small part of the work of `write`."""
        if not self.largest:
            return 0.0, 1.0
        chosen = self._choice(step)
        if chosen:
            _, error, bits = chosen
        else:
            error, bits = (
                self.flat.size * each for each in judging.judged(self._sample, 1 / step, 0.0, self.largest / step)
            )
        return error * step**2, 1 + bits / 8

    @cached_property
    def _sample(self) -> F32:
        return np.ascontiguousarray(self.flat[:: max(1, self.flat.size // _SAMPLE)])

    def write(self, step: float, out: Writer, key: int | None = None) -> None:
        """Append the tensor at this step; with a key, rounded randomly. The last two are kept: a search ends with one of those that it has tried."""
        settings = step, key, self.slope
        if settings not in self._written:
            written = Writer()
            self._write(step, written, key)
            self._written = dict([*self._written.items()][-1:]) | {settings: written.pieces}
        out.pieces.extend(self._written[settings])

    def _write(self, step: float, out: Writer, key: int | None) -> None:
        if key is None and self.energy < self.slope * step**2:  # less than a single bit may cost
            out.raw(bytes([_ALL_ZERO]))
            return
        prepared = self._prepared(step, parts.FAR if key is None else parts.FAR_ON_GRID)
        body, columns = Writer(), prepared.layout.columns
        body.pieces.extend(prepared.before)
        nothing = not prepared.head & ~_BY_FREQUENCY
        for index, group in enumerate(_classes(prepared.residual, prepared.layout, body)):
            if key is None:
                nothing = not parts.write(group, columns, self.slope, body) and nothing
            else:
                parts.write_randomly(group, columns, fold(key, index), body)
                nothing = False
        out.raw(bytes([_ALL_ZERO if nothing else prepared.head]))
        if not nothing:
            out.pieces.extend(body.pieces)

    def expected_error(self, step: float) -> float:
        """The mean squared error, over all random roundings, of the whole tensor."""
        values = self._prepared(step, parts.FAR_ON_GRID).residual.astype(np.float64)
        part = values - np.floor(values)
        return float((part * (1 - part)).sum()) * step**2

    def _prepared(self, step: float, far: float) -> Prepared:
        """Outliers and components written, and what is left over."""
        if self.largest > far * step:
            outliers = Writer()
            values = self._without_outliers(step, far, outliers)
            return Prepared(_OUTLIERS, outliers.pieces, values[None], Layout.of(self.shape, False))
        found = self._planes
        if found.by_frequency and found.largest > far * step:
            values = self.flat * np.float32(1 / step)
            return Prepared(0, [], values[None], Layout.of(self.shape, False))
        layout, head, unit = (
            Layout.of(self.shape, found.by_frequency),
            _BY_FREQUENCY * found.by_frequency,
            self._scale / step,
        )
        chosen = self._choice(step)
        if chosen and chosen[0]:
            components = Writer()
            products = _write_components(chosen[0], layout, components)
            if less_products(found.values.reshape(-1), unit, products.reshape(-1)) <= far:
                return Prepared(head + _COMPONENTS, components.pieces, products, layout)
        return Prepared(head, [], found.values * np.float32(unit), layout)

    def _without_outliers(self, step: float, far: float, out: Writer) -> F32:
        """Values in steps; those too far out for any symbol are written as they are, and zero from here on."""
        at = np.flatnonzero(np.abs(self.flat) > far * step).astype(np.uint32)
        out.varint(at.size)
        out.section(K.gaps_encode(at, self.flat.size))
        out.raw(bytes_of(self.flat[at]))
        values = self.flat.copy()
        values[at] = 0
        return values * np.float32(1 / step)


@fused
def less_products(values: F32, unit: float, products: F32) -> float:
    """In place of products, values times the unit less them; the largest magnitude of that, or 0 if not all are finite."""
    np.subtract(values * np.float32(unit), products, out=products)
    return largest_magnitude(products)


@dataclass(frozen=True, eq=False)
class Planes:
    """Planes of a tensor, scaled; the largest magnitude, not scaled."""

    values: F32
    by_frequency: bool
    largest: float


@dataclass(frozen=True, eq=False)
class Prepared:
    """A tensor at a step: its head, what comes before the residual, and that."""

    head: int
    before: list[Piece]
    residual: F32
    layout: Layout


@dataclass(frozen=True)
class Layout:
    """How many planes a tensor has, and of which shape."""

    planes: int
    rows: int
    columns: int

    @property
    def n(self) -> int:
        return self.planes * self.rows * self.columns

    @classmethod
    def of(cls, shape: Shape, by_frequency: bool) -> Layout:
        if by_frequency:
            return cls(size(shape[2:]), shape[0], shape[1])
        return cls(1, *matrix_shape(shape))

    def matrix(self, values: F32) -> F32:
        """Planes side by side: rows of all of them."""
        if self.planes == 1:
            return values.reshape(self.rows, -1)
        return np.ascontiguousarray(values.reshape(self.planes, self.rows, -1).transpose(1, 0, 2)).reshape(
            self.rows, -1
        )

    def by_plane(self, right: F32) -> F32:
        """Right vectors of the matrix, plane by plane."""
        return np.ascontiguousarray(right.reshape(-1, self.planes, self.columns).transpose(1, 0, 2)).reshape(-1)

    def products(self, left: F32, right: F32) -> F32:
        """What components stand for, nearly to the last bit: what is left over is rounded anyway. It stands until the next ones are asked for."""
        out = parallel.scratch(self.n, np.float32) if self.n <= CHUNK else np.empty(self.n, np.float32)
        np.matmul(left.T, right.reshape(self.planes, -1, self.columns), out=out.reshape(self.planes, self.rows, -1))
        return out.reshape(self.planes, -1)

    def add_products(self, left: F32, right: F32, out: F32) -> None:
        """Add what components stand for to planes."""
        for vectors, plane in zip(right.reshape(self.planes, -1), out.reshape(self.planes, -1), strict=True):
            K.add_pairs(left, vectors, self.rows, self.columns, plane)


def _write_components(choice: Choice, layout: Layout, out: Writer) -> F32:
    """Append left vectors, and the right ones that suit them as they will be decoded; return what they stand for."""
    coarse, in_coarse = np.float32(choice.coarseness), np.float32(choice.unit / choice.coarseness)
    lengths = factors.rounded_lengths(choice.sigma / choice.coarseness)
    left = choice.left * lengths[:, None]
    likely = np.concatenate([left.reshape(-1), (choice.right * in_coarse).reshape(-1)])
    part = parts.TrellisPart(likely, largest_magnitude(likely))
    part.add(left.reshape(-1))
    left = part.decoded(0).reshape(choice.rank, -1) / lengths[:, None]
    part.add(layout.by_plane(factors.best_partners(left, choice.matrix) * in_coarse))
    out.varint(choice.rank)
    out.raw(bytes([choice.coarse_index]))
    out.raw(bytes_of(factors.short_floats(lengths)))
    part.write(0, parts.BLOCK, out)
    return layout.products(left, part.decoded(1) * coarse)


def _classes(values: F32, layout: Layout, out: Writer) -> list[F32]:
    """The residual in groups of planes with about the same energy; append which plane is in which."""
    if layout.planes == 1:
        return [values.reshape(-1)]
    count = max(1, min(CLASSES, layout.planes, values.size // _FEWEST_IN_CLASS))
    order = np.argsort(-np.einsum("ij,ij->i", values, values), kind="stable")
    number = np.empty(layout.planes, np.uint8)
    for index, group in enumerate(np.array_split(order, count)):
        number[group] = index
    out.raw(number.tobytes())
    return [np.ascontiguousarray(values[number == index]).reshape(-1) for index in range(count)]


def read(src: Reader, shape: Shape, step: float) -> F32:
    """The tensor that `Tensor.write` wrote, flat: in one call, or by single kernels on several threads."""
    on_threads = size(shape) > CHUNK and parallel.get_threads() > 1
    return checked_finite((_read if on_threads or not kernels.fuses() else _read_at_once)(src, shape, step))


def _read_at_once(src: Reader, shape: Shape, step: float) -> F32:
    """As `_read`: sections, costs and refusals are the same."""
    n, taps, rest = size(shape), planes.taps_of(shape), src.view[src.position :]
    head = rest[0] if len(rest) else 0
    if head == _ALL_ZERO:
        return _read(src, shape, step)
    transform, by_frequency = _NO_TRANSFORM, (0, 0, 0)
    if taps and head < _ALL_ZERO and head & _BY_FREQUENCY:
        src.spend(planes.cost(taps, n))
        transform, by_frequency = planes.transform(taps).reshape(-1), (size(taps), shape[0], shape[1])
    out, left = np.empty(n, np.float32), src.left
    used, spent, sections = kernels.native().decode_tensor(
        rest, (1, *matrix_shape(shape)), by_frequency, transform, step, left.memory, left.operations, out
    )
    src.spend(Cost(*spent))  # refused here if it was too much: then nothing more was done
    src.sections.extend(sections)
    src.position += used
    return out


def _read(src: Reader, shape: Shape, step: float) -> F32:
    n, taps, head = size(shape), planes.taps_of(shape), src.byte("head")
    if head == _ALL_ZERO:
        return np.zeros(n, np.float32)
    if head > _ALL_ZERO or (head & _BY_FREQUENCY and not taps):
        raise DecodeError(f"rd: unknown head {head}")
    if taps and head & _BY_FREQUENCY:
        src.spend(planes.cost(taps, n))
    outliers = _read_outliers(src, n) if head & _OUTLIERS else None
    layout = Layout.of(shape, bool(head & _BY_FREQUENCY))
    pairs = _read_components(src, layout, step) if head & _COMPONENTS else None
    out = _read_residual(src, layout, step)
    if pairs:
        layout.add_products(*pairs, out)
    flat = planes.by_tap(out, taps) if head & _BY_FREQUENCY and taps else out.reshape(-1)
    if outliers:
        at, values = outliers
        flat[at] += values
    return flat


def _read_outliers(src: Reader, n: int) -> tuple[U32, F32]:
    count = src.varint("number of outliers", n)
    src.spend(Cost(20 * count, 80 * count))
    at = K.gaps_decode(src.section("positions"), count, n)
    return at, np.frombuffer(src.take(4 * count, "outliers"), "<f4")


def _read_components(src: Reader, layout: Layout, step: float) -> tuple[F32, F32]:
    rank = src.varint("rank", min(factors.MOST, layout.rows, layout.planes * layout.columns))
    src.spend(Cost(16 * rank * (layout.rows + layout.planes * layout.columns), rank * layout.n // 4))
    coarse = factors.coarseness(src.byte("coarseness"))
    lengths = factors.long_floats(src.take(2 * rank, "lengths"))
    if not np.all((lengths > 0) & np.isfinite(lengths)):
        raise DecodeError("rd: a component has no length")
    left, right = parts.read_vectors(src, rank * layout.rows, rank * layout.planes * layout.columns)
    left = (left.reshape(rank, layout.rows) / lengths[:, None]).reshape(-1)
    return left, right * np.float32(coarse) * np.float32(step)


def _read_residual(src: Reader, layout: Layout, step: float) -> F32:
    out = np.empty((layout.planes, layout.rows * layout.columns), np.float32)
    if layout.planes == 1:
        parts.read(src, layout.columns, step, out.reshape(-1))
        return out
    if not layout.n:
        raise DecodeError("rd: classes of planes without values")
    number = np.frombuffer(src.take(layout.planes, "classes"), np.uint8)
    if int(number.max()) >= CLASSES:
        raise DecodeError(f"rd: class {number.max()} of {CLASSES}")
    for index in range(int(number.max()) + 1):
        group = np.empty((int((number == index).sum()), out.shape[1]), np.float32)
        parts.read(src, layout.columns, step, group.reshape(-1))
        out[number == index] = group
    return out
