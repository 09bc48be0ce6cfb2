"""Frames of a session: what kind, which number, the digest of the memory it was made against, a few sections, a checksum.

"pbs" version kind | number (varint) | digest (8 bytes) | sections ... | CRC-32C

FULL       the server's session, the channels, the model raw: replaces whatever the client held
DELTA      a frame of the downlink's channel, and the exact tensors that changed
UNCHANGED  the client holds this model already
UPDATE     a frame of the uplink's channel, and the exact tensors that changed
ACK        received, and nothing to send
RESYNC     the client cannot use the frame, and why; only a FULL one helps
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from perbit.bits import Piece, Reader, Writer
from perbit.errors import DecodeError, StateMismatch
from perbit.kernels import K

_HEAD = b"pbs\x01"
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


class Opened(NamedTuple):
    """A frame whose checksum is good."""

    kind: Kind
    sequence: int
    digest: bytes
    body: Reader


def seal(kind: Kind, sequence: int, digest: bytes, *sections: Piece) -> bytes:
    """Put a frame together."""
    out = Writer()
    out.raw(_HEAD + bytes([kind]))
    out.varint(sequence)
    out.raw(digest)
    for section in sections:
        out.section(section)
    checksum = 0
    for piece in out.pieces:
        checksum = K.crc32c(piece, checksum)
    out.raw(checksum.to_bytes(4, "little"))
    return out.join()


def open_frame(frame: Piece) -> Opened:
    """Check a frame and read its head."""
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise DecodeError(f"a frame is bytes, got {type(frame).__name__}")
    view = memoryview(frame).cast("B")
    if len(view) < len(_HEAD) + 5 or view[: len(_HEAD)] != _HEAD:
        raise DecodeError("not a frame of a session that this perbit reads")
    if K.crc32c(view[:-4]) != int.from_bytes(view[-4:], "little"):
        raise DecodeError("the checksum does not match: the frame is damaged or truncated")
    src = Reader(view[len(_HEAD) : -4])
    kind = src.byte("kind")
    if kind not in Kind.__members__.values():
        raise DecodeError(f"a session has no frames of kind {kind}")
    return Opened(Kind(kind), src.varint("sequence number"), bytes(src.take(DIGEST_BYTES, "digest")), src)


def ask_for_resync(frame: Piece, reason: str) -> bytes:
    """A client's answer to a frame it cannot use."""
    try:
        sequence = open_frame(frame).sequence
    except DecodeError:
        sequence = 0
    return seal(Kind.RESYNC, sequence, bytes(DIGEST_BYTES), reason.encode()[:MAX_REASON])
