"""`rd`: steps that are none, components without length, parts and streams of unknown kinds, levels outside the alphabet."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

import perbit
from attacks.build import Bits, array, attack, sealed, section
from perbit.coding.bits import varint
from perbit.kernels import K
from perbit.kernels.reference.bitcoder import BitEncoder
from perbit.kernels.reference.levels import LevelModel

Frames = Iterator[tuple[str, bytes, str]]
NAN, INF = float("nan"), float("inf")
SHAPE = (4, 6)
N = 24
WIRE_ID = 57
STEP, BITS, DB, RANDOM, RANK = (1 << field for field in range(5))  # the mask of parameters
NOTHING, TRELLIS, WIDE, SHIFTED, WIDE_SHIFTED, GRID = (bytes([kind]) for kind in range(6))
ZEROS, ADAPTIVE, RANS, SPARSE = (bytes([mode]) for mode in range(4))
PLAIN, OUTLIERS, BY_FREQUENCY, COMPONENTS, ALL_ZERO = (bytes([head]) for head in (0, 1, 2, 4, 8))
ONE = b"\x80\x3f"  # the upper half of 1.0


def _frame(*payload: bytes, shape: tuple[int, ...] = SHAPE, codec: str | bytes = "rd(0.5)") -> bytes:
    return array(codec, shape, *payload)


def _residual(*part: bytes, shape: tuple[int, ...] = SHAPE, codec: str | bytes = "rd(0.5)") -> bytes:
    """Neither outliers nor components."""
    return _frame(PLAIN, *part, shape=shape, codec=codec)


def _components(rank: int, coarse: int, lengths: bytes, *parts: bytes, codec: str = "rd(0.5)") -> bytes:
    return _frame(COMPONENTS, varint(rank), bytes([coarse]), lengths, *parts, codec=codec)


def _levels(*levels: int, columns: int = SHAPE[1], context: int = 0) -> bytes:
    """An adaptive stream of zeros and these levels; context 0 begins at a mean of 0."""
    coder, model = BitEncoder(), LevelModel(columns, 0)
    for level in (*[0] * (N - len(levels)), *levels):
        model.code(coder, level)
    return ADAPTIVE + bytes([context]) + section(coder.finish())


def _spec(mask: int, *values: float | bool) -> bytes:
    """The spec of one stage, each value as it comes."""
    written = b""
    for value in values:
        if isinstance(value, bool):
            written += bytes([1 + value])
        elif isinstance(value, int):
            written += b"\x03" + varint(value)
        else:
            written += b"\x07" + struct.pack("<d", value)
    return varint(1) + varint(WIRE_ID) + varint(mask) + written


@attack
def knobs_of_rd() -> Frames:
    nothing = PLAIN + NOTHING
    yield "none", _frame(nothing, codec=_spec(0)), "set one of step, bits and db"
    yield "two", _frame(nothing, codec=_spec(STEP | DB, 0.5, -3.0)), "set one of step, bits and db"
    for value in (NAN, INF, 0.0, -1.0, 1e38, 1e-300, True):
        yield f"a step of {value}", _frame(nothing, codec=_spec(STEP, value)), "step must be"
    for value in (NAN, INF, 0.0, -1.0, 33):
        yield f"{value} bits", _frame(bytes(4), nothing, codec=_spec(BITS, value)), "bits must be"
    for value in (NAN, INF, -121.0, 61):
        yield f"{value} dB", _frame(bytes(4), nothing, codec=_spec(DB, value)), "db must be"
    yield "random of 1", _frame(nothing, codec=_spec(STEP | RANDOM, 0.5, 1)), "random must be"
    for rank in (65, 1 << 40, 2.0, True):
        yield f"a rank of {rank}", _frame(nothing, codec=_spec(STEP | RANK, 0.5, rank)), "rank must be"


@attack
def steps_of_rd() -> Frames:
    nothing = PLAIN + NOTHING
    for codec in ("rd(bits=1)", "rd(db=-10)"):
        for step in (NAN, INF, -INF, 0.0, -0.0, -1.0, 1e38, 1e-38, 1e-45):
            frame = _frame(struct.pack("<f", step), nothing, codec=codec)
            yield f"{codec}: {step}", frame, "is no step"
        yield f"{codec}: cut short", array(codec, SHAPE, b"\0\0\0"), "step: needs 4 bytes"


@attack
def heads_of_rd() -> Frames:
    yield "none", _frame(), "head"
    for head in (9, 10, 16, 64, 255):
        yield f"{head}", _frame(bytes([head]), NOTHING), f"unknown head {head}"
    for shape in ((N,), (4, 6), (2, 3, 1), (2, 2, 257), (2, 2, 17, 1), (1, 1, 16, 17), (2, 2, 3, 0)):
        yield f"frequencies of {shape}", _frame(BY_FREQUENCY, bytes(999), shape=shape), "unknown head 2"
    yield "something behind all zeros", _frame(ALL_ZERO, NOTHING), "left over"
    yield "nothing behind outliers", _frame(OUTLIERS), "number of outliers"
    yield "nothing behind components", _frame(COMPONENTS), "rank"


@attack
def planes_of_rd() -> Frames:
    def frame(*payload: bytes, shape: tuple[int, ...] = (3, 2, 2, 2), codec: str = "rd(0.5)") -> bytes:
        return _frame(BY_FREQUENCY, *payload, shape=shape, codec=codec)

    yield "no classes", frame(), "classes"
    yield "three classes for four planes", frame(bytes(3)), "classes: needs 4 bytes"
    for number in (3, 4, 255):
        yield f"class {number}", frame(bytes([0, number, 0, 0]), NOTHING * 4), f"class {number} of 3"
    yield "one part for two classes", frame(bytes([0, 1, 0, 1]), NOTHING), "kind of part"
    yield "two parts for a class", frame(bytes(4), NOTHING * 2), "left over"
    yield "a class that is skipped has no part", frame(bytes([0, 2, 0, 2]), NOTHING * 2), "kind of part"
    yield "no values", frame(bytes(4), NOTHING, shape=(0, 2, 2, 2)), ""
    far = np.full(N, 4094, np.uint32)
    levels = GRID + ADAPTIVE + b"\0" + section(K.levels_encode(far, 2, 0))
    yield "a transform that overflows", frame(bytes(4), levels, codec="rd(1e37)"), "NaN or infinite"


@attack
def outliers_of_rd() -> Frames:
    def frame(count: int, positions: bytes, *values: float, n: int = N) -> bytes:
        floats = struct.pack(f"<{len(values)}f", *values)
        return _frame(OUTLIERS, varint(count), section(positions), floats, NOTHING, shape=(n,))

    two = K.gaps_encode(np.array([3, 7], np.uint32), N)
    yield "more than values", frame(N + 1, b"", *[1.0] * (N + 1)), "number of outliers"
    yield "2^62", frame(1 << 62, b""), "number of outliers"
    yield "some among no values", frame(1, b"", 1.0, n=0), "number of outliers"
    yield "no positions", frame(2, b"", 1.0, 2.0), "coded data|position"
    yield "a position at the end", frame(1, K.gaps_encode(np.array([90], np.uint32), 100), 1.0), "outside|coded data"
    yield "positions of a longer tensor", frame(2, K.gaps_encode(np.array([3, 900], np.uint32), 1000), 1.0, 2.0), ""
    yield "a byte too many", frame(2, two + b"\0", 1.0, 2.0), "coded data"
    yield "one value for two", frame(2, two, 1.0), "outliers: needs 8 bytes|rank|truncated"
    for value in (NAN, INF, -INF):
        yield f"{value}", frame(2, two, 1.0, value), "NaN or infinite"
    first, value = section(K.gaps_encode(np.array([0], np.uint32), N)), struct.pack("<f", 3e38)
    farthest = _frame(OUTLIERS, varint(1), first, value, GRID + _levels(*[4094] * N), codec="rd(1e37)")
    yield "a sum that overflows", farthest, "NaN or infinite"


@attack
def components_of_rd() -> Frames:
    parts = TRELLIS + ZEROS, NOTHING
    for rank in (5, 64, 65, 1 << 50):
        yield f"{rank} of a matrix with four rows", _components(rank, 0, ONE * min(rank, 65), *parts), "rank"
    large = _frame(COMPONENTS, varint(65), b"\0", ONE * 65, *parts, shape=(100, 100))
    yield "65 of a large matrix", large, "rank"
    yield "one of a vector and no more", _frame(COMPONENTS, varint(2), b"\0", ONE * 2, *parts, shape=(N,)), "rank"
    yield "one of nothing", _frame(COMPONENTS, varint(1), b"\0", ONE, *parts, shape=(0, 7)), "rank"
    for coarse in (41, 100, 255):
        yield f"coarseness {coarse}", _components(1, coarse, ONE, *parts), f"{coarse} is no coarseness"
    lengths = {"zero": b"\0\0", "minus zero": b"\0\x80", "NaN": b"\xc0\x7f", "infinity": b"\x80\x7f", "-1": b"\x80\xbf"}
    for name, length in lengths.items():
        yield f"a length of {name}", _components(2, 0, ONE + length, *parts), "no length"
    yield "lengths cut short", _frame(COMPONENTS, varint(2), b"\0", ONE), "lengths: needs 4 bytes"
    yield "no vectors", _components(1, 0, ONE), "kind of part"
    yield "vectors, but no residual", _components(1, 0, ONE, TRELLIS + ZEROS), "kind of part"
    shortest = _components(1, 40, b"\x01\0", TRELLIS + ZEROS, NOTHING, codec="rd(1e37)")
    yield "vectors that overflow", shortest, "NaN or infinite"


@attack
def parts_of_rd() -> Frames:
    yield "none", _residual(), "kind of part"
    for kind in (6, 7, 100, 255):
        yield f"kind {kind}", _residual(bytes([kind]) + ZEROS), f"unknown kind of part {kind}"
        yield f"vectors of kind {kind}", _components(1, 0, ONE, bytes([kind]) + ZEROS, NOTHING), "unknown kind of part"
    for kind in (SHIFTED, WIDE_SHIFTED):
        yield f"kind {kind[0]}, shifts cut short", _residual(kind + bytes(6)), "shifts: needs 7 bytes"
        yield f"kind {kind[0]}, no stream", _residual(kind + bytes(7)), "mode"
    for kind in (TRELLIS, WIDE, GRID):
        yield f"kind {kind[0]}, no stream", _residual(kind), "mode"
    yield "something behind nothing", _residual(NOTHING + ZEROS), "left over"
    yield "two parts", _residual(TRELLIS + ZEROS + TRELLIS + ZEROS), "left over"


@attack
def streams_of_rd() -> Frames:
    for mode in (4, 5, 128, 255):
        yield f"mode {mode}", _residual(TRELLIS + bytes([mode]) + section(b"")), f"unknown mode {mode}"
    sparse, one = TRELLIS + SPARSE, section(K.gaps_encode(np.array([0], np.uint32), N))
    level = section(K.levels_encode(np.array([255], np.uint32), 0, 0))
    yield "more that are not zero than there are", _residual(sparse + varint(N + 1)), f"above the limit {N}"
    yield "no positions", _residual(sparse + varint(1)), "positions"
    yield "positions of fewer", _residual(sparse + varint(9) + one + b"\0" + level), "coded data|position"
    yield "few without a context", _residual(sparse + varint(1) + one), "context of the mean"
    yield "few, and a level outside", _residual(sparse + varint(1) + one + b"\0" + level), "outside the alphabet of 255"
    yield "a stream of zeros that goes on", _residual(TRELLIS + ZEROS + b"\0"), "left over"
    for context in (28, 100, 255):
        yield f"context {context}", _residual(TRELLIS + _levels(context=context)), f"{context} is no context"
    yield "no context", _residual(TRELLIS + ADAPTIVE), "context of the mean"
    yield "no levels", _residual(TRELLIS + ADAPTIVE + b"\0"), "levels"
    for name, kind, alphabet in (("8", TRELLIS, 256), ("16", WIDE, 4096), ("random", GRID, 4096)):
        for level in (alphabet, alphabet + 1, 1 << 30, (1 << 32) - 1):
            yield f"{name}: level {level}", _residual(kind + _levels(level, 0)), "outside the alphabet|level"
    for level in (1 << 32, (1 << 32) + 5):
        yield f"level {level}, in 32 bits a small one", _residual(TRELLIS + _levels(level)), "level|malformed"
    good = _levels(5, 1, 700, 2)
    yield "levels that end early", _residual(WIDE + ADAPTIVE + b"\0" + section(b"")), "coded data"
    yield "levels of a longer tensor", _residual(WIDE + good, shape=(3, 6)), "coded data"
    for more in (b"\0", b"\xff", b"\0\0\0\0"):
        longer = good[:2] + section(good[3:] + more)
        yield f"levels and {more.hex()}", _residual(WIDE + longer), "coded data has the wrong length"


@attack
def tables_of_rd() -> Frames:
    def frame(stream: bytes, kind: bytes = TRELLIS) -> bytes:
        return _residual(kind + RANS + varint(4095 if kind == WIDE else 255) + section(stream))

    def table(bits: int = 8) -> Bits:
        return Bits().put(bits - 8, 4)

    constant, packed, sent, prior = (varint(mode) for mode in range(4))
    for name, kind, alphabet in (("8", TRELLIS, 256), ("16", WIDE, 4096), ("random", GRID, 4096)):
        for largest in (alphabet, 1 << 40):
            yield f"{name}: level {largest}", _residual(kind + RANS + varint(largest)), "largest level"
    yield "no largest level", _residual(TRELLIS + RANS), "largest level"
    yield "no section", _residual(TRELLIS + RANS + varint(255)), "symbols"
    yield "one of one level", _residual(TRELLIS + RANS + varint(0) + section(constant + varint(1))), "symbol"
    yield "no mode", frame(b""), "coding mode"
    yield "a constant outside 8 bits", frame(constant + varint(256)), "symbol"
    yield "a constant outside 12 bits", frame(constant + varint(4096), WIDE), "symbol"
    yield "a prior", frame(prior + bytes(20)), "does not exist"
    yield "packed, too short", frame(packed + bytes(N - 1)), "packed symbols"
    yield "packed, too long", frame(packed + bytes(N + 1)), "left over"
    yield "no table", frame(sent), "table"
    yield "17 bits", frame(sent + table(17).bytes()), "16 bits"
    yield "a single symbol", frame(sent + table().gamma(256).bytes() + bytes(4)), "at least two symbols"
    yield "beyond the alphabet", frame(sent + table().gamma(257).bytes() + bytes(4)), "more symbols than its alphabet"
    wide = table(16).gamma(4097).bytes() + bytes(4)
    yield "beyond the wide alphabet", frame(sent + wide, WIDE), "more symbols than its alphabet|corrupt"
    full = table().gamma(1).step(7).put(127, 7).step(0).put(127, 7)
    yield "over-full", frame(sent + full.bytes() + bytes(4)), "exceed their sum"
    halves = table().gamma(255).step(7).put(0, 7)
    yield "no stream", frame(sent + halves.bytes()), "rANS|stream"
    yield "a state below 2^16", frame(sent + halves.bytes() + struct.pack("<I", 65535)), ""
    yield "two sections", _residual(TRELLIS + RANS + varint(255) + section(constant + varint(128)) * 2), "left over"


def cut_frames() -> Iterator[tuple[str, bytes]]:
    """Valid frames with every kind of part."""
    rng = np.random.default_rng(0)
    low_rank = rng.normal(size=(24, 2)) @ rng.normal(size=(2, 40)) + 0.01 * rng.normal(size=(24, 40))
    kernels = rng.normal(size=(8, 9, 1, 1)) + 0.1 * rng.normal(size=(8, 9, 3, 3))
    for codec, values in {
        "rd(0.5)": rng.normal(size=(5, 6)),
        "rd(bits=2)": rng.laplace(size=40),
        "rd(0.1, random=true)": rng.normal(size=30),
        "rd(0.001)": 1000 * rng.normal(size=20),
        "rd(0.01)": rng.normal(size=25),
        "rd(0.02)": low_rank,
        "rd(0.3)": kernels,
    }.items():
        yield codec, perbit.encode(values.astype(np.float32), codec, seed=1)


@attack
def cut_or_longer_rd() -> Frames:
    for codec, frame in cut_frames():
        body, begin = frame[:-4], perbit.inspect(frame)["header_bytes"]
        for cut in sorted({*range(begin, min(begin + 40, len(body))), *range(len(body) - 20, len(body))}):
            yield f"{codec}: {cut} of {len(body)} bytes", sealed(body[:cut]), ""
        for more in (b"\0", b"\xff", b"\0\0\0\0"):
            yield f"{codec}: {more.hex()} behind it", sealed(body + more), "left over"


@attack
def columns_without_rows() -> Frames:
    """No values, but millions of columns, each of which would have a mean to remember."""
    stream = TRELLIS + ADAPTIVE + b"\0" + section(b"")
    yield "2^27", _residual(stream, b"\xff", shape=(0, 1 << 27)), "left over|columns"
    yield "2^47", _residual(stream, b"\xff", shape=(0, 1 << 47)), "left over|columns"
