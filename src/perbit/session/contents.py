"""What a frame of a session holds: the frames of codecs inside it, for ledgers and for those who look."""

from __future__ import annotations

from perbit.coding.bits import Piece
from perbit.session.envelope import Kind, WayDown, opened


def frames_in(frame: Piece) -> list[bytes]:
    """The frames that `perbit.loads` and `perbit.inspect` take, in the order they stand there."""
    message = opened(frame)
    body = message.body
    found: list[Piece] = []
    if message.kind == Kind.FULL:
        body.section("terms")
    if message.kind in (Kind.FULL, Kind.DELTA):
        way = WayDown.read(body)
        found = [*way.frames, way.exact]
    if message.kind == Kind.FULL:
        found.append(body.section("model"))
    if message.kind == Kind.UPDATE:
        found = [body.section("update"), body.section("exact")]
    return [bytes(part) for part in found if len(part)]
