"""Frames of a session: what kind, which number, the digest of the memory it was made against, a few sections, a checksum.

"pbs" version and kind (one byte) | number (varint) | digest (8 bytes) | sections ... | CRC-32C

FULL       the session and all a client must know, the first model or what stands for it: replaces whatever the client held
DELTA      frames of the downlink, from where they start, and the exact tensors that changed
UNCHANGED  the client holds this model already
UPDATE     a frame of the uplink's channel, the exact tensors that changed, and which tensors these are if that is new
ACK        received, and nothing to send
RESYNC     the client cannot use the frame, and why; only a FULL one helps
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from perbit.coding.bits import Piece, Reader, Writer
from perbit.errors import DecodeError, StateMismatch
from perbit.frame.seal import seal, unsealed
from perbit.protocols.downlinks import Start

_MAGIC, _VERSION = b"pbs", 2
DIGEST_BYTES = 8
MAX_REASON = 300
_MOST_FRAMES, _MOST_VERSIONS = 1 << 16, 1 << 48


class Kind(IntEnum):
    """The number of each kind in a frame. Never reused."""

    FULL = 0
    DELTA = 1
    UNCHANGED = 2
    UPDATE = 3
    ACK = 4
    RESYNC = 5


class ResyncNeeded(StateMismatch):
    """The two ends do not hold the same. A client sends `answer` to the server; the server sends a full frame."""

    def __init__(self, message: str, answer: bytes = b"") -> None:
        super().__init__(message)
        self.answer = answer


class StaleAnswer(StateMismatch):
    """An answer to a message that is no longer waited for. It is left out; the client keeps its place."""


class Envelope(NamedTuple):
    """A frame of a session whose checksum is good."""

    kind: Kind
    sequence: int
    digest: bytes
    body: Reader


def enclose(kind: Kind, sequence: int, digest: bytes, *parts: Piece | int) -> bytes:
    """Put a frame together: numbers as they are, pieces as sections."""
    out = Writer()
    out.raw(_MAGIC + bytes([_VERSION << 4 | kind]))
    out.varint(sequence)
    out.raw(digest)
    for part in parts:
        if isinstance(part, int):
            out.varint(part)
        else:
            out.section(part)
    return seal(out)


def opened(frame: Piece) -> Envelope:
    """Check a frame and read its head."""
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise DecodeError(f"a frame is bytes, got {type(frame).__name__}")
    view = memoryview(frame).cast("B")
    if len(view) < len(_MAGIC) + 5 or view[: len(_MAGIC)] != _MAGIC or view[len(_MAGIC)] >> 4 != _VERSION:
        raise DecodeError("not a frame of a session that this perbit reads")
    src = Reader(unsealed(view)[len(_MAGIC) :])
    kind = src.byte("kind") & 0xF
    if kind not in Kind.__members__.values():
        raise DecodeError(f"a session has no frames of kind {kind}")
    return Envelope(Kind(kind), src.varint("sequence number"), bytes(src.take(DIGEST_BYTES, "digest")), src)


def kind_of(frame: bytes) -> Kind:
    """The kind of a frame that this end has made."""
    return Kind(frame[len(_MAGIC)] & 0xF)


class WayDown(NamedTuple):
    """What a FULL or DELTA frame brings: the version of the model, the downlink's frames and from where they start, exact tensors."""

    version: int
    start: Start
    frames: list[Piece]
    exact: Piece

    def parts(self) -> tuple[Piece | int, ...]:
        """Two numbers, of which the second says what follows, then the sections."""
        follows = self.start | bool(len(self.exact)) << 2 | len(self.frames) << 3
        return (self.version, follows, *self.frames, *([self.exact] if len(self.exact) else []))

    @classmethod
    def read(cls, body: Reader) -> WayDown:
        version, follows = (
            body.varint("version", limit=_MOST_VERSIONS),
            body.varint("what follows", limit=_MOST_FRAMES << 3),
        )
        frames: list[Piece] = [body.section("frames") for _ in range(follows >> 3)]
        return cls(version, Start(follows & 3), frames, body.section("exact") if follows & 4 else b"")


def ask_for_resync(frame: Piece, reason: str) -> bytes:
    """A client's answer to a frame it cannot use."""
    try:
        sequence = opened(frame).sequence
    except DecodeError:
        sequence = 0
    return enclose(Kind.RESYNC, sequence, bytes(DIGEST_BYTES), reason.encode(errors="replace")[:MAX_REASON])
