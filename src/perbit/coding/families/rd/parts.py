"""Values of a tensor, quantized and coded: the residual, or the vectors of components.

    part = byte kind: 0 nothing, all zeros · 1 trellis with 8-bit symbols · 2 with 16-bit symbols · 3, 4 the same with 7 bytes of shifts first
           · 5 grid (random rounding), 16-bit symbols; then the stream of symbols (streams.py)

Values come in pieces, each with a trellis of its own. They are in steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perbit import parallel
from perbit.coding.bits import Piece, Reader, Writer
from perbit.coding.families.rd import streams, trellis
from perbit.coding.families.rd.trellis import LIMITS, SHIFTED, SLOPE, ZERO, SymbolType
from perbit.errors import DecodeError
from perbit.kernels import CHUNK, K, composed, fused
from perbit.kernels.api import F32, Symbols
from perbit.randomness import fold

_NOTHING, _TRELLIS, _WIDE, _SHIFTED, _WIDE_SHIFTED, _GRID = range(6)
_SHIFTS = 2 * SHIFTED + 1
_SHIFTS_PAY = 256  # values from which the seven bytes come back
_DOUBTFUL = 0.1  # bits a value below which nothing at all may be better
_SMALL, _WEAK = 2.0, 0.12  # steps, and squares of them a value: nothing below was ever worth its bits
BLOCK = 1 << 13  # values of vectors, whose size changes from component to component, that share a table
FAR = LIMITS[np.uint16]  # values further out, in steps, have no symbol
FAR_ON_GRID = ZERO[np.uint16] - 2.0


class TrellisPart:
    """Pieces that are quantized one by one, by a machine that fits them all."""

    def __init__(self, likely: F32, largest: float) -> None:
        kind: SymbolType = np.uint8 if largest <= LIMITS[np.uint8] else np.uint16
        self.machine = trellis.fit(likely, kind, with_shifts=likely.size >= _SHIFTS_PAY)
        self.symbols: list[Symbols] = []

    def add(self, *pieces: F32) -> None:
        """Quantize pieces."""
        self.symbols.extend(parallel.run(self.machine.encode, pieces))

    def decoded(self, piece: int) -> F32:
        """What the other end will make of a piece."""
        symbols = self.symbols[piece]
        values = np.empty(symbols.size, np.float32)
        trellis.trellis_decode(symbols, self.machine.shifts, values)
        return values

    def write(self, columns: int, block: int, out: Writer) -> None:
        """Append the part: symbols in rows of `columns` (0: in no rows), with a table for each block."""
        shifted, wide = bool(self.machine.shifts.any()), self.machine.kind is np.uint16
        out.raw(bytes([(_SHIFTED if shifted else _TRELLIS) + wide]))
        if shifted:
            out.raw(self.machine.shifts.tobytes())
        symbols = self.symbols[0] if len(self.symbols) == 1 else np.concatenate(self.symbols)
        out.raw(streams.write_stream(symbols, columns, block))


def write(values: F32, columns: int, slope: float, out: Writer) -> bool:
    """Append values by the trellis, or nothing where that is as good at this exchange rate; say whether there was something."""
    on_threads = values.size > CHUNK and parallel.get_threads() > 1
    part = (composed(write_part) if on_threads else write_part)(values, columns, slope)
    out.raw(part)
    return part[0] != _NOTHING


@fused
def write_part(values: F32, columns: int, slope: float) -> Piece:
    """Values by the trellis, or nothing where that is as good at this exchange rate."""
    _, _, energy, largest, _ = K.moments(values)
    if largest and not (slope >= SLOPE and _is_hopeless(energy / values.size, largest)):
        part, pieces, coded = TrellisPart(values, largest), _pieces(values), Writer()
        part.add(*pieces)
        part.write(columns, CHUNK, coded)
        bits = 8 * sum(map(len, coded.pieces))
        if bits > max(_DOUBTFUL * values.size, _SHIFTS_PAY) or _is_worth_it(part, pieces, energy - slope * bits):
            return coded.join()
    return bytes([_NOTHING])


def _is_hopeless(mean_square: float, largest: float) -> bool:
    """Whether whatever is sent costs more than it saves."""
    return largest < _SMALL and mean_square <= _WEAK


def _is_worth_it(part: TrellisPart, pieces: Sequence[F32], allowed: float) -> bool:
    """Whether the error stays below what is allowed."""
    error = 0.0
    for i, x in enumerate(pieces):
        error += _energy(x - part.decoded(i))
    return error < allowed


def _energy(values: F32) -> float:
    return K.moments(values)[2]


def write_randomly(values: F32, columns: int, key: int, out: Writer) -> None:
    """Append values on a grid, each rounded up or down so that its mean is right."""
    symbols: Symbols = np.empty(values.size, np.uint16)
    one, most = np.ones(1, np.float32), ZERO[np.uint16] - 1
    for lo, hi in parallel.chunks(values.size):
        K.quantize_levels_random(values[lo:hi], one, CHUNK, most, fold(key, lo), 0, symbols[lo:hi])
    symbols += np.uint16(1)  # the kernel has its zero at 2047
    out.raw(bytes([_GRID]))
    out.raw(streams.write_stream(symbols, columns, CHUNK))


def read(src: Reader, columns: int, step: float, out: F32) -> None:
    """Fill `out` with the decoded values times the step."""
    _read(src, columns, CHUNK, step, out, _pieces(out))


def read_vectors(src: Reader, left: int, right: int) -> tuple[F32, F32]:
    """The vectors of components: so many values each."""
    both = np.empty(left + right, np.float32)
    _read(src, 0, BLOCK, 1.0, both, [both[:left], both[left:]])
    return both[:left], both[left:]


def _read(src: Reader, columns: int, block: int, step: float, out: F32, pieces: Sequence[F32]) -> None:
    kind = src.byte("kind of part")
    if kind == _NOTHING:
        out.fill(0)
        return
    if kind > _GRID:
        raise DecodeError(f"rd: unknown kind of part {kind}")
    shifts: NDArray[np.int8] = np.zeros(_SHIFTS, np.int8)
    if kind in (_SHIFTED, _WIDE_SHIFTED):
        shifts = np.frombuffer(src.take(_SHIFTS, "shifts"), np.int8)
    symbols = np.uint8 if kind in (_TRELLIS, _SHIFTED) else np.uint16
    table = _grid(step) if kind == _GRID else trellis.table_of(shifts, symbols, step)
    streams.read(src, columns, block, table, out)
    if kind != _GRID:
        for _ in parallel.run(K.trellis_signs, pieces):
            pass


def _pieces(values: F32) -> list[F32]:
    return [values[lo:hi] for lo, hi in parallel.chunks(values.size)]


def _grid(step: float) -> F32:
    return trellis.saturated(np.arange(-ZERO[np.uint16], ZERO[np.uint16], dtype=np.float64) * step)
