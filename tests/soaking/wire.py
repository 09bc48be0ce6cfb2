"""One question and one answer over a connection of its own: whoever is killed in between leaves nothing half open."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

LARGEST = 64 << 20
HEAD = struct.Struct("<B16sI")
GET, ANSWER, DIGEST = 1, 2, 3


class GoneError(Exception):
    """The other side is not there, or went away."""


def ask(address: Path, what: int, who: str, body: bytes = b"") -> bytes:
    """The server's answer. GoneError: nobody knows whether it got the question."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(30)
            line.connect(str(address))
            line.sendall(HEAD.pack(what, who.encode(), len(body)) + body)
            (size,) = struct.unpack("<I", _take(line, 4))
            return _take(line, size)
    except OSError as error:
        raise GoneError(str(error)) from error


def hear(line: socket.socket) -> tuple[int, str, bytes]:
    """What a client asks."""
    what, who, size = HEAD.unpack(_take(line, HEAD.size))
    if size > LARGEST:
        raise GoneError("too long")
    return what, who.rstrip(b"\0").decode(errors="replace"), _take(line, size)


def say(line: socket.socket, body: bytes) -> None:
    line.sendall(struct.pack("<I", len(body)) + body)


def _take(line: socket.socket, size: int) -> bytes:
    taken = bytearray()
    while len(taken) < size:
        piece = line.recv(min(1 << 20, size - len(taken)))
        if not piece:
            raise GoneError("the line went dead")
        taken += piece
    return bytes(taken)
