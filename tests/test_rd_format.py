"""A decoder of `rd` written from docs/format.md and kernels/README.md alone reads every golden frame as perbit does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import perbit
from golden import make
from perbit.coding.families.entropy import Rans
from perbit.kernels import K

MOST = float(np.finfo(np.float32).max)
F32 = np.ndarray[Any, np.dtype[np.float32]]
FRAMES = [case for case in make.cases() if case.what.startswith("rd(")]


class Bytes:
    """Fields of a payload, one after the other, and the values that heads, kinds and modes had."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.seen = data, 0, set[tuple[str, int]]()

    def choice(self, what: str) -> int:
        value = self.take(1)[0]
        self.seen.add((what, value))
        return value

    def take(self, n: int) -> bytes:
        self.at += n
        return self.data[self.at - n : self.at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def section(self) -> bytes:
        return self.take(self.varint())


# --- the arithmetic code of levels -----------------------------------------------------------------------------------


class Decisions:
    def __init__(self, data: bytes) -> None:
        self.data, self.taken, self.low, self.high = data, 4, 0, (1 << 32) - 1
        self.code = int.from_bytes(data[:4].ljust(4, b"\0"), "big")

    def next(self, p: int) -> int:
        middle = self.low + ((self.high - self.low) * p >> 16)
        one = self.code <= middle
        self.low, self.high = (self.low, middle) if one else (middle + 1, self.high)
        while self.low >> 24 == self.high >> 24:
            following = self.data[self.taken] if self.taken < len(self.data) else 0
            self.taken += 1
            self.low, self.high = self.low << 8 & 0xFFFFFFFF, self.high << 8 & 0xFFFFFFFF | 255
            self.code = self.code << 8 & 0xFFFFFFFF | following
        return int(one)


def fine(m: int) -> int:
    o = (m + 16).bit_length() - 1
    return 2 * (o - 4) + (m + 16 >> (o - 1) & 1)


def coarse(m: int) -> int:
    return min(fine(m) // 2, 9)


def g(m: int) -> int:
    return ((m + 8) << 22) // (m + 264)


def d(c: int) -> int:
    e = (2 + c % 2) << (c // 2 + 3)
    return e + (e >> 2) - 16


def read_levels(data: bytes, count: int, columns: int, mean: int) -> list[int]:
    decisions, learnt = Decisions(data), dict[Any, list[int]]()
    few, many, last, before, means = mean, mean, mean, mean, [mean] * columns
    levels: list[int] = []
    for i in range(count):
        x, y = (few, means[i % columns]) if columns else (last, before)
        pair, b, c = (coarse(x), coarse(y)), fine(many), fine((x + y) >> 1)
        v = 0
        while v < 18:
            contexts = [
                learnt.setdefault(("A", v, pair), [g((d(2 * pair[0]) + d(2 * pair[1])) >> 1), 0]),
                learnt.setdefault(("B", v, b), [g(d(b)), 0]),
                learnt.setdefault(("C", v, c), [g(d(c)), 0]),
            ]
            p = contexts[0][0] + contexts[1][0] + 2 * contexts[2][0] >> 8
            bit = decisions.next(min(max(p, 16), 65520))
            for state in contexts:
                state[0] += (((1 << 22) - 1) * bit - state[0]) * (65536 // (state[1] + 4)) >> 16
                state[1] = min(state[1] + 1, 252)
            if not bit:
                break
            v += 1
        if v == 18:
            bits, u = 0, 1
            while decisions.next(1 << 15):
                bits += 1
            for _ in range(bits):
                u = 2 * u + decisions.next(1 << 15)
            v = u + 17
        levels.append(v)
        now = 256 * min(v, 1023)
        few, many = few + ((now - few) >> 2), many + ((now - many) >> 4)
        if columns:
            means[i % columns] += (now - y) >> 2
        else:
            before, last = last, now
    return levels


# --- parts -----------------------------------------------------------------------------------------------------------


def lanes_of(n: int) -> int:
    return 1 if n < 1024 else 4 if n < 8192 else 8 if n < 65536 else 32


def signed(values: F32) -> F32:
    bits, lanes = values.view(np.uint32).copy(), lanes_of(values.size)
    for lane in range(lanes):
        a = b = c = 0
        for i in range(lane, values.size, lanes):
            p = int(bits[i]) & 1
            bits[i] ^= np.uint32(a << 31)
            a, b, c = a ^ b, p ^ c, a
    return bits.view(np.float32)


def read_levels_of(src: Bytes, count: int, columns: int, block: int) -> list[int]:
    mode = src.choice("mode")
    if mode == 0:
        return [0] * count
    if mode == 1:
        m = src.take(1)[0]
        return read_levels(src.section(), count, columns, ((2 + m % 2) << (m // 2 + 3)) - 16)
    if mode == 3:
        few = src.varint()
        positions = K.gaps_decode(src.section(), few, count).tolist()
        m = src.take(1)[0]
        found = read_levels(src.section(), few, 0, ((2 + m % 2) << (m // 2 + 3)) - 16)
        sparse = dict(zip(positions, found, strict=True))
        return [sparse[i] + 1 if i in sparse else 0 for i in range(count)]
    assert mode == 2
    alphabet, levels = src.varint() + 1, []
    for begin in range(0, count, block):
        out = np.empty(min(block, count - begin), np.uint8 if alphabet <= 256 else np.uint16)
        Rans().decode(src.section(), alphabet, None, out)
        levels += out.tolist()
    return levels


def read_part(src: Bytes, pieces: list[int], columns: int, block: int, step: float) -> F32:
    """All values of a part; pieces are what has a trellis of its own."""
    kind, count = src.choice("kind"), sum(pieces)
    if kind == 0:
        return np.zeros(count, np.float32)
    shifts = np.frombuffer(src.take(7), np.int8) if kind in (3, 4) else np.zeros(7, np.int8)
    levels = read_levels_of(src, count, columns, block)
    k = np.array([v // 2 if v % 2 == 0 else -(v + 1) // 2 for v in levels], np.int64)
    if kind == 5:
        return np.clip(k * step, -MOST, MOST).astype(np.float32)
    moved = np.where(np.abs(k) <= 3, shifts[np.clip(k, -3, 3) + 3] / 64, 0.0)
    points = np.clip((2 * k + 0.5 + moved) * step, -MOST, MOST).astype(np.float32)
    bits = points.view(np.uint32) & np.uint32(0xFFFFFFFE) | (k & 1).astype(np.uint32)
    return np.concatenate([signed(piece) for piece in np.split(bits.view(np.float32), np.cumsum(pieces)[:-1])])


def read_residual_part(src: Bytes, count: int, columns: int, step: float) -> F32:
    chunk = 1 << 20
    pieces = [min(chunk, count - begin) for begin in range(0, count, chunk)] or [0]
    return read_part(src, pieces, columns, chunk, step)


# --- tensors ---------------------------------------------------------------------------------------------------------


def products(left: F32, right: F32) -> F32:
    """Pairs of vectors as rows, added one after the other in single precision."""
    total = np.zeros((left.shape[1], right.shape[1]), np.float32)
    for u, v in zip(left, right, strict=True):
        total += u[:, None] * v
    return total


def cosines(side: int) -> Any:
    rows = [
        [math.cos(math.pi * f * (2 * q + 1) / (2 * side)) * math.sqrt(2 / side) for q in range(side)]
        for f in range(side)
    ]
    rows[0] = [math.sqrt(1 / side)] * side
    return np.array(rows)


def transform(taps: tuple[int, ...]) -> F32:
    full = np.ones((1, 1))
    for side in taps:
        full = np.kron(full, cosines(side))
    return (np.rint(full * (1 << 20)) / (1 << 20)).astype(np.float32)


def read_tensor(src: Bytes, shape: tuple[int, ...], step: np.float32 | None) -> F32:
    step = np.frombuffer(src.take(4), "<f4")[0] if step is None else step
    n, unit = math.prod(shape), float(step)
    head = src.choice("head")
    if head == 8:
        return np.zeros(shape, np.float32)
    at, far = np.zeros(0, np.uint32), np.zeros(0, np.float32)
    if head & 1:
        outliers = src.varint()
        at = K.gaps_decode(src.section(), outliers, n)
        far = np.frombuffer(src.take(4 * outliers), "<f4")
    taps = shape[2:]
    planes, rows, columns = 1, shape[0] if len(shape) > 1 else 1, math.prod(shape[1:] if len(shape) > 1 else shape)
    if head & 2:
        planes, rows, columns = math.prod(taps), shape[0], shape[1]
    if head & 4:
        rank = src.varint()
        coarseness = np.float32(2 ** (src.take(1)[0] / 2))
        lengths = (np.frombuffer(src.take(2 * rank), "<u2").astype(np.uint32) << 16).view(np.float32)
        vectors = read_part(src, [rank * rows, rank * planes * columns], 0, 1 << 13, 1.0)
        left = vectors[: rank * rows].reshape(rank, rows) / lengths[:, None]
        right = (vectors[rank * rows :] * coarseness * step).reshape(planes, rank, columns)
    values = np.zeros((planes, rows, columns), np.float32)
    if planes == 1:
        values[0] = read_residual_part(src, n, columns, unit).reshape(rows, columns)
    else:
        classes = list(src.take(planes))
        for number in range(max(classes) + 1):
            members = [plane for plane in range(planes) if classes[plane] == number]
            part = read_residual_part(src, len(members) * rows * columns, columns, unit)
            values[members] = part.reshape(len(members), rows, columns)
    if head & 4:
        values += np.stack([products(left, right[plane]) for plane in range(planes)])
    flat = values.reshape(-1)
    if head & 2:
        flat = products(transform(taps), values.reshape(planes, -1)).T.reshape(-1).copy()
    flat[at] += far
    return flat.reshape(shape)


def read_frame(frame: bytes) -> tuple[F32, Bytes]:
    """The array of a frame; of its header, which other tests are about, perbit tells."""
    about = perbit.inspect(frame)
    step = perbit.codec(about["spec"]).step  # type: ignore[attr-defined]
    src = Bytes(frame[about["header_bytes"] : -4])
    return read_tensor(src, tuple(about["shape"]), None if step is None else np.float32(step)), src


@pytest.mark.parametrize("case", FRAMES, ids=lambda case: case.name)
def test_the_page_is_enough_to_read_a_frame(case: make.Case) -> None:
    frame = case.frame_path.read_bytes()
    expected = perbit.decode(frame)
    found, src = read_frame(frame)
    assert src.at == len(src.data)
    assert found.astype(expected.dtype).tobytes() == expected.tobytes()


def test_the_golden_frames_have_all_that_the_page_tells_of() -> None:
    seen = set[tuple[str, int]]().union(*(read_frame(case.frame_path.read_bytes())[1].seen for case in FRAMES))
    heads = {value for what, value in seen if what == "head"}
    assert {value for what, value in seen if what == "kind"} == {0, 1, 2, 3, 4, 5}
    assert {value for what, value in seen if what == "mode"} >= {1, 2, 3}
    assert 8 in heads
    assert {bit for bit in (1, 2, 4) for head in heads - {8} if head & bit} == {1, 2, 4}
