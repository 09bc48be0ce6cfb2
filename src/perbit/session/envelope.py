"""Frames of a session: what kind, which number, the digest of the memory it was made against, a few sections, a checksum.

"pbs" version kind | number (varint) | digest (8 bytes) | sections ... | CRC-32C

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

_HEAD = b"pbs\x02"
DIGEST_BYTES = 8
MAX_REASON = 300


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


def enclose(kind: Kind, sequence: int, digest: bytes, *parts: Piece | int | list[bytes]) -> bytes:
    """Put a frame together: numbers as they are, pieces as sections, lists with their length in front."""
    out = Writer()
    out.raw(_HEAD + bytes([kind]))
    out.varint(sequence)
    out.raw(digest)
    for part in parts:
        if isinstance(part, int):
            out.varint(part)
        elif isinstance(part, list):
            out.varint(len(part))
            for piece in part:
                out.section(piece)
        else:
            out.section(part)
    return seal(out)


def opened(frame: Piece) -> Envelope:
    """Check a frame and read its head."""
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise DecodeError(f"a frame is bytes, got {type(frame).__name__}")
    view = memoryview(frame).cast("B")
    if len(view) < len(_HEAD) + 5 or view[: len(_HEAD)] != _HEAD:
        raise DecodeError("not a frame of a session that this perbit reads")
    src = Reader(unsealed(view)[len(_HEAD) :])
    kind = src.byte("kind")
    if kind not in Kind.__members__.values():
        raise DecodeError(f"a session has no frames of kind {kind}")
    return Envelope(Kind(kind), src.varint("sequence number"), bytes(src.take(DIGEST_BYTES, "digest")), src)


def pieces(body: Reader, name: str, most: int = 1 << 16) -> list[Piece]:
    """A list of sections."""
    count = body.varint(f"how many {name}", limit=most)
    return [body.section(name) for _ in range(count)]


def ask_for_resync(frame: Piece, reason: str) -> bytes:
    """A client's answer to a frame it cannot use."""
    try:
        sequence = opened(frame).sequence
    except DecodeError:
        sequence = 0
    return enclose(Kind.RESYNC, sequence, bytes(DIGEST_BYTES), reason.encode(errors="replace")[:MAX_REASON])
