"""Frames of channels: byte for byte what `perbit.dumps` writes, with the header built and parsed once per shape instead of once per frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from perbit.channels.layout import Layout
from perbit.channels.shortcut import Shortcut, shortcut_for
from perbit.coding.afar import Afar
from perbit.coding.agreed import AgreedLike
from perbit.coding.bits import Piece, Reader, Writer
from perbit.coding.codec import Codec, as_pipeline
from perbit.coding.cost import Budget, expected_values
from perbit.coding.values import Echo, Known
from perbit.errors import DecodeError
from perbit.frame import payload, wire
from perbit.frame.header import DIGEST_BYTES, MAGIC, STATEFUL, Entry, stateful_head, write_message
from perbit.frame.seal import SEAL_BYTES, seal, unsealed
from perbit.kernels.api import F32
from perbit.plan.plan import Chooser, PlanLike, as_plan
from perbit.randomness import fold, key_from_seed

_SEQUENCE_AT = len(MAGIC) + 2  # magic, version, flags
_UNNUMBERED = 1 << 63  # above every sequence number


@dataclass(frozen=True)
class Blueprint:
    """What is the same in every frame of one plan and one layout."""

    layout: Layout
    entries: tuple[Entry, ...]
    numbered_head: bytes  # up to the sequence number
    plain_head: bytes
    directory: bytes  # as a section, compressed if that is shorter
    shorts: tuple[Shortcut, ...] = ()  # of the tensors, if all of them have one

    @cached_property
    def n_expected(self) -> int:
        """What a frame's budget is made for."""
        return expected_values(shape for _, shape in self.layout.tensors)


@dataclass(frozen=True, eq=False)
class _Known:
    """What was found out about a plan and a layout, which it keeps alive: as long as it is known, their ids are theirs."""

    plan: PlanLike
    layout: Layout
    chooser: Chooser

    @cached_property
    def looks_at_values(self) -> bool:
        return self.chooser.looks_at_values

    @cached_property
    def blueprint(self) -> Blueprint:
        return _blueprint(self.plan, repr(self.plan), self.layout)


_known: dict[tuple[int, int], _Known] = {}
_MOST_KNOWN = 256


def _look_up(plan: PlanLike, layout: Layout) -> _Known:
    """By identity: writing and hashing a plan costs more than coding a small vector."""
    key = id(plan), id(layout)
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[key] = _Known(plan, layout, as_plan(plan))
    return found


def blueprint(plan: PlanLike, layout: Layout) -> Blueprint:
    """What frames of this plan have in common, as far as it can be known without their values."""
    return _look_up(plan, layout).blueprint


@lru_cache(maxsize=256)
def _blueprint(plan: PlanLike, written: str, layout: Layout) -> Blueprint:
    """Kept by the plan as it is written, too: mwl2(2, 2) equals mwl2(2, 2.0), but its frames say something else."""
    chooser = as_plan(plan)
    return _made(layout, {name: chooser.codec_for(name, shape) for name, shape in layout.tensors})


def blueprint_for(plan: PlanLike, layout: Layout, flat: F32, seed: int) -> Blueprint:
    """The blueprint of one frame: for most plans the same as ever, for those that look at values a new one."""
    known = _look_up(plan, layout)
    if known.looks_at_values:
        return _made(layout, known.chooser.codecs(layout.split(flat), seed))
    return known.blueprint


def _made(layout: Layout, codecs: Mapping[str, Codec]) -> Blueprint:
    return blueprint_of(
        layout, tuple(Entry(name, "float32", shape, as_pipeline(codecs[name])) for name, shape in layout.tensors)
    )


def blueprint_of(layout: Layout, entries: tuple[Entry, ...]) -> Blueprint:
    """The head of a frame is made by `header` itself."""
    out = Writer()
    write_message(list(entries), None, None, out)
    plain_head, rest = out.join()[:_SEQUENCE_AT], out.join()[_SEQUENCE_AT:]
    shorts = [shortcut_for(entry.codec, hi - lo) for entry, (lo, hi) in zip(entries, layout.bounds, strict=True)]
    found = tuple(short for short in shorts if short is not None)
    return Blueprint(
        layout, entries, stateful_head(plain_head), plain_head, rest, found if len(found) == len(entries) else ()
    )


def write(made: Blueprint, flat: F32, seed: int, sequence: int | None, digest: bytes | None) -> tuple[bytes, F32]:
    """The frame `perbit.dumps(tensors, plan, seed=seed, sequence=sequence, digest=digest)` would give, and its decoded value."""
    key = key_from_seed(seed)
    if made.shorts:
        out = _begin(made, sequence, digest)
        value = _write_short(made, flat, out, key)
        if value is not None:
            return seal(out), value
    out = _begin(made, sequence, digest)
    for index, (entry, (lo, hi)) in enumerate(zip(made.entries, made.layout.bounds, strict=True)):
        payload.write(flat[lo:hi].reshape(entry.shape), entry, entry.name, out, fold(key, index))
    frame = seal(out)
    return frame, read(frame, made).values()


def _write_short(made: Blueprint, flat: F32, out: Writer, key: int) -> F32 | None:
    """All tensors by their short cuts, and their decoded value; None if one of them is not finite."""
    values = []
    for index, (short, (lo, hi)) in enumerate(zip(made.shorts, made.layout.bounds, strict=True)):
        value = short.encode(flat[lo:hi], out, fold(key, index))
        if value is None:
            return None
        values.append(value)
    return values[0] if len(values) == 1 else np.concatenate(values)


def write_parts(
    made: Blueprint,
    parts: Sequence[F32 | Afar],
    keys: Sequence[int],
    sequence: int,
    digest: bytes,
    known: Sequence[Known] | None = None,
) -> tuple[bytes, list[Echo]]:
    """A frame of tensors that lie apart, each with a key of its own, encoded from where they are; and what will be decoded."""
    out = _begin(made, sequence, digest)
    echoes = []
    for entry, part, key, each in zip(made.entries, parts, keys, known or [Known()] * len(parts), strict=True):
        own = Writer()  # a codec with a goal in bytes (`rd`) takes what was written before it for its own head
        echo = Echo()
        payload.write(part.reshape(entry.shape), entry, entry.name, own, key, echo, each)
        echo.n_bytes = sum(map(len, own.pieces))
        out.pieces.extend(own.pieces)
        echoes.append(echo)
    return seal(out), echoes


def _begin(made: Blueprint, sequence: int | None, digest: bytes | None) -> Writer:
    out = Writer()
    if sequence is None or digest is None:
        out.raw(made.plain_head)
    else:
        out.raw(made.numbered_head)
        out.varint(sequence)
        out.raw(digest)
    out.raw(made.directory)
    return out


@dataclass(frozen=True)
class Opened:
    """A frame whose seal is good: its number and digest, and the payload still to be decoded."""

    sequence: int | None
    digest: bytes | None
    entries: tuple[Entry, ...]
    payload: Reader
    shorts: tuple[Shortcut, ...] = ()

    def values(self) -> F32:
        """All tensors as one flat vector."""
        with payload.decoding():
            if self.shorts:
                parts = [short.decode(self.payload) for short in self.shorts]
            else:
                parts = [np.asarray(payload.read(self.payload, entry), np.float32) for entry in self.entries]
            self.payload.end()
        return (
            parts[0].reshape(-1) if len(parts) == 1 else np.concatenate([part.reshape(-1) for part in parts] or [_NONE])
        )

    def add_to(self, outs: Sequence[F32 | Afar], weight: float, echoes: Sequence[Echo] | None = None) -> None:
        """Add `weight` times each tensor to its flat array in `outs`; sparse tensors touch only the entries they hold.

        Whoever made the frame passes its echoes and need not decode what they know.
        """
        known: Sequence[Echo | None] = echoes or [None] * len(outs)
        for entry, out, echo in zip(self.entries, outs, known, strict=True):
            self.add_next(entry, out, weight, echo)
        self.end()

    def end(self) -> None:
        """Nothing may follow the last tensor."""
        with payload.decoding():
            self.payload.end()

    def add_next(self, entry: Entry, out: F32 | Afar, weight: float, echo: Echo | None) -> None:
        """The same for the next tensor alone."""
        with payload.decoding():
            if echo is None or echo.add is None or not isinstance(out, np.ndarray):
                payload.add(self.payload, entry, out, weight)
            else:
                self.payload.take(echo.n_bytes, "a tensor")
                echo.add(out, weight)


_NONE = np.zeros(0, np.float32)


def read(frame: Piece, expected: Blueprint, codecs: AgreedLike | None = None) -> Opened:
    """Open a frame of the expected layout, coded as expected or by one of `codecs` (None: by any); a head seen before is compared, not parsed."""
    view = memoryview(frame).cast("B")
    head_end = _SEQUENCE_AT
    if view[:head_end] not in (expected.numbered_head, expected.plain_head):
        return _read_any(frame, expected, codecs)
    src = Reader(unsealed(view))
    src.budget = Budget.of_frame(len(view), expected.n_expected)
    src.position = head_end
    is_numbered = bool(view[5] & STATEFUL)
    sequence = src.varint("sequence number") if is_numbered else None
    digest = bytes(src.take(DIGEST_BYTES, "digest")) if is_numbered else None
    if src.view[src.position : src.position + len(expected.directory)] != expected.directory:
        return _read_any(frame, expected, codecs)
    src.position += len(expected.directory)
    return Opened(sequence, digest, expected.entries, src, expected.shorts)


def number(frame: Piece) -> int:
    """The sequence number a frame claims; nothing is checked yet. One without is new to every receiver: its number is above all others."""
    src = Reader(memoryview(frame).cast("B"))
    flags = src.take(_SEQUENCE_AT, "head")[5]
    return src.varint("sequence number") if flags & STATEFUL else _UNNUMBERED


def overhead(frame: bytes) -> int:
    """How many bytes of a good frame say what it is: everything but the payload."""
    at = _SEQUENCE_AT
    if frame[5] & STATEFUL:
        at = _after_varint(frame, at) + DIGEST_BYTES
    directory_at = _after_varint(frame, at)
    length = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(frame[at:directory_at]))
    return directory_at + length + SEAL_BYTES


def _after_varint(frame: bytes, at: int) -> int:
    while frame[at] & 0x80:
        at += 1
    return at + 1


def _read_any(frame: Piece, expected: Blueprint, codecs: AgreedLike | None) -> Opened:
    """The long way: any plan of these codecs, as long as the tensors are the expected ones."""
    layout = expected.layout
    src, header = wire.open_frame(frame, layout.n, expected=expected.n_expected, codecs=codecs)
    wire.check_message(header)
    if tuple((entry.name, entry.shape) for entry in header.entries) != layout.tensors:
        wire.check_expected(header, dict(layout.tensors))
        raise DecodeError("the tensors of the message are not in the order the channel was set up for")
    return Opened(header.sequence, header.digest, header.entries, src)
