"""The seal at the end of everything that travels: a CRC-32C of all that stands before it. It finds damage, not forgery."""

from __future__ import annotations

from perbit.coding.bits import Writer
from perbit.errors import DecodeError
from perbit.kernels import K

SEAL_BYTES = 4
_SHORT = 1 << 14  # bytes that are copied faster than their pieces are summed one by one


def seal(out: Writer) -> bytes:
    """All that was written, with its checksum.

    >>> out = Writer()
    >>> out.raw(b"123456789")
    >>> seal(out).hex(" ", -9)
    '313233343536373839 839206e3'
    """
    checksum = 0
    for piece in out.pieces if sum(map(len, out.pieces)) > _SHORT else [out.join()]:
        checksum = K.crc32c(piece, checksum)
    out.raw(checksum.to_bytes(SEAL_BYTES, "little"))
    return out.join()


def unsealed(view: memoryview) -> memoryview:
    """What stands before the seal, which must be good."""
    body, found = view[:-SEAL_BYTES], view[-SEAL_BYTES:]
    if len(found) < SEAL_BYTES or K.crc32c(body) != int.from_bytes(found, "little"):
        raise DecodeError("the checksum does not match: the frame is damaged or truncated")
    return body
