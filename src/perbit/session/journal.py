"""A server's state in a folder: a snapshot, and a journal of every call since. A process that was killed goes on from there.

A session is a function of its calls: the same calls give the same frames and the same states, random choices included, for these follow
from the seed. So a call is written down before it does anything, and whatever a client may have seen can be computed again.

    server-7.npz   the session when journal 7 began; written whole or not at all
    journal-7.log  calls since: "what it is and of which client" as JSON, its bytes, and a checksum
    rows-*.bin     clients' memories and anchors; what a snapshot speaks of there is not written over while that snapshot is the newest

docs/adr/0011-restart-and-memory.md has the argument for each moment at which a process may be killed.
"""

from __future__ import annotations

import fcntl
import os
import re
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from perbit.channels.packing import from_text, restore, save, to_text
from perbit.coding.bits import Piece
from perbit.errors import PerbitError
from perbit.files import FileError, write_all
from perbit.kernels import K
from perbit.printing import logger
from perbit.session.serverstate import STATE_TYPES, ClientId, ServerState

LOG = logger("perbit.session")
_OURS = re.compile(r"\.?(server-(\d+)\.npz|journal-(\d+)\.log|rows-\w+\.bin|lock)(\.\w+)?")
_SNAPSHOT = re.compile(r"server-(\d+)\.npz")
_HEAD = 12  # lengths of the two parts and a CRC-32C over both, four bytes each
_SHORT = 1 << 20  # a journal is never too long before it has so many bytes
_LONGEST = 1 << 30  # bytes of one call; lengths have 32 bits


class Call(NamedTuple):
    """Something that was asked of a session."""

    name: str
    client: ClientId
    data: bytes


class Journal:
    """The files of one session in a folder of its own, which one process holds at a time.

    Args:
        folder: made if it is not there; only files of the names above are touched.
        about: what must be the same for a saved state to be of use: the protocol.
    """

    def __init__(self, folder: Path, about: str) -> None:
        self.folder, self._about = folder, about
        self._number, self._snapshot_bytes = 0, 0
        self._file: IO[bytes] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.fdopen(os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600), "wb")
            weakref.finalize(self, self._lock.close)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(f"another process keeps its session in {folder}; give each a folder of its own") from None
        except OSError as error:
            raise FileError(f"cannot keep a session in {folder}: {error.strerror}") from error

    # --- writing ------------------------------------------------------------------------------------------------------

    def begin(self, state: ServerState, rows: set[str]) -> None:
        """Everything is in this state now; what was written before is of no use any more."""
        path = self.folder / f"server-{self._number + 1}.npz"
        save(path, state, self._about, private=True)
        self._sync_folder()
        self._open(self._number + 1)
        self._snapshot_bytes = path.stat().st_size
        self._remove(keep={path.name, f"journal-{self._number}.log", "lock", *rows})

    def write(self, call: Call) -> None:
        """Note a call that is about to be made. It outlives this process at once, and a power cut since the last `sync`."""
        if self._file is None:
            return
        if self._file.closed:
            raise FileError(f"the journal in {self.folder} could not be written to the end; start the server again")
        head = to_text((call.name, call.client)).encode()
        lengths = len(head).to_bytes(4, "little") + len(call.data).to_bytes(4, "little")
        checksum = K.crc32c(call.data, K.crc32c(head, K.crc32c(lengths, 0)))
        self._append(lengths + checksum.to_bytes(4, "little") + head, call.data)

    def _append(self, *pieces: bytes) -> None:
        """All of them or nothing: what stood behind half a record could never be read again."""
        assert self._file is not None
        end = self._file.tell()
        try:
            for piece in pieces:
                write_all(self._file, piece)
        except OSError as error:
            self._go_back(end)
            raise FileError(f"cannot write to {self.folder}: {error.strerror}") from error

    def _go_back(self, end: int) -> None:
        assert self._file is not None
        try:
            self._file.truncate(end)
            self._file.seek(end)
        except OSError:  # then nothing may be written behind it
            self._file.close()

    def takes(self, n_bytes: int) -> bool:
        """Whether a call with so many bytes can be noted; a larger model is a snapshot at once."""
        return n_bytes < _LONGEST

    def sync(self) -> None:
        if self._file is not None and not self._file.closed:
            os.fsync(self._file.fileno())

    @property
    def is_long(self) -> bool:
        """Whether to begin anew takes no more bytes than were written since."""
        return (
            self._file is not None and not self._file.closed and self._file.tell() > max(_SHORT, self._snapshot_bytes)
        )

    def _open(self, number: int, keep: int = 0) -> None:
        path = self.folder / f"journal-{number}.log"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(handle, keep)
        except OSError as error:
            raise FileError(f"cannot write to {self.folder}: {error.strerror}") from error
        if self._file is not None:
            self._file.close()
        self._file, self._number = os.fdopen(handle, "r+b", 0), number
        self._file.seek(keep)
        weakref.finalize(self, self._file.close)

    def _sync_folder(self) -> None:
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    # --- reading ------------------------------------------------------------------------------------------------------

    def load(self) -> tuple[ServerState, list[Call]] | None:
        """The newest snapshot that can be read and the calls since; None if there is nothing of use."""
        numbers = [int(found[1]) for path in self.folder.iterdir() if (found := _SNAPSHOT.fullmatch(path.name))]
        self._number = max(numbers, default=0)
        for number in sorted(numbers, reverse=True):
            try:
                state = restore(self.folder / f"server-{number}.npz", STATE_TYPES, self._about)
                if not isinstance(state, ServerState):
                    raise FileError("it holds something else")
            except PerbitError as error:
                LOG.warning("the session in %s starts anew, every client is sent everything: %s", self.folder, error)
                continue
            path = self.folder / f"journal-{number}.log"
            data = path.read_bytes() if path.exists() else b""
            calls = list(_calls(data))
            self._open(number, keep=sum(_HEAD + length for _, length in calls))
            self._snapshot_bytes = (self.folder / f"server-{number}.npz").stat().st_size
            return state, [call for call, _ in calls]
        return None

    def close(self, remove: bool = False) -> None:
        """Let others have the folder; with `remove`, without any of this session's files."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self._remove(keep=set())
        self._lock.close()
        if remove:
            with suppress(OSError):
                self.folder.rmdir()

    def _remove(self, keep: set[str]) -> None:
        """Only files of perbit's names, those that killed writers left included."""
        for path in self.folder.iterdir():
            if path.name not in keep and _OURS.fullmatch(path.name):
                with suppress(OSError):
                    path.unlink()


def _calls(data: Piece) -> Iterator[tuple[Call, int]]:
    """Every call that was written whole, and its length; what comes after the first that was not is of no use."""
    view, at = memoryview(data), 0
    while at + _HEAD <= len(view):
        n_head, n_data, checksum = (int.from_bytes(view[at + i : at + i + 4], "little") for i in (0, 4, 8))
        body = view[at + _HEAD : at + _HEAD + n_head + n_data]
        if len(body) < n_head + n_data or K.crc32c(body, K.crc32c(view[at : at + 8], 0)) != checksum:
            return
        try:
            name, client = from_text(bytes(body[:n_head]).decode(), ())
        except (PerbitError, ValueError):
            return
        yield Call(name, client, bytes(body[n_head:])), n_head + n_data
        at += _HEAD + n_head + n_data
