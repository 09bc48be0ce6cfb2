"""A key that both ends know: frames of anybody else are refused, and so are those that were altered, or sent back to where they came from."""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from hmac import compare_digest

from perbit.coding.bits import Piece
from perbit.errors import DecodeError, SpecError

_MAGIC, _TAG_BYTES, _FEWEST = b"pbk1", 16, 16
ANYBODY = -1  # the number of a client that was not told its own yet


class Way(Enum):
    """Down to a client, or up to the server."""

    DOWN = b"down"
    UP = b"up"


class Seal:
    """Puts a tag of keyed BLAKE2b before each frame: over the frame, its way, and the number of the client that it is for or from.

    >>> seal = Seal(bytes(16))
    >>> sealed = seal.close(b"frame", Way.DOWN, 7)
    >>> seal.open(sealed, Way.DOWN, 7)
    b'frame'
    >>> seal.open(sealed, Way.UP, 7)
    Traceback (most recent call last):
    perbit.errors.DecodeError: the seal of the frame is not good: it was altered, or made with another key or for another end
    """

    def __init__(self, key: bytes | None) -> None:
        if key is not None and not (isinstance(key, bytes) and _FEWEST <= len(key) <= blake2b.MAX_KEY_SIZE):
            raise SpecError(f"a key has {_FEWEST} to {blake2b.MAX_KEY_SIZE} bytes")
        self._key = key

    def close(self, frame: bytes, way: Way, number: int) -> bytes:
        return frame if self._key is None else _MAGIC + self._tag(frame, way, number) + frame

    def open(self, sealed: Piece, way: Way, *numbers: int) -> bytes:
        """The frame, if it was sealed for one of these clients."""
        if not isinstance(sealed, bytes | bytearray | memoryview):
            raise DecodeError(f"a frame is bytes, got {type(sealed).__name__}")
        if self._key is None:
            return bytes(sealed)
        data, at = bytes(sealed), len(_MAGIC) + _TAG_BYTES
        if data[: len(_MAGIC)] != _MAGIC:
            raise DecodeError("the frame has no seal, but this session has a key")
        tag, frame = data[len(_MAGIC) : at], data[at:]
        if not any(compare_digest(tag, self._tag(frame, way, number)) for number in numbers):
            raise DecodeError(
                "the seal of the frame is not good: it was altered, or made with another key or for another end"
            )
        return frame

    def inside(self, sealed: bytes) -> bytes:
        """The frame in what this end has sealed itself."""
        return sealed if self._key is None else sealed[len(_MAGIC) + _TAG_BYTES :]

    def _tag(self, frame: bytes, way: Way, number: int) -> bytes:
        tag = blake2b(way.value, digest_size=_TAG_BYTES, key=self._key or b"", person=b"perbit session")
        tag.update(number.to_bytes(9, "little", signed=True))
        tag.update(frame)
        return tag.digest()
