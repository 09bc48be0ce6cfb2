"""The ledger: one JSON line for every message, appended round by round; `read` gives them back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import perbit
from perbit.files import FileError
from perbit.session.contents import frames_in

Line = dict[str, Any]


class Lines:
    """A file of JSON lines that is always whole up to `position`: what a crash left behind it is cut off."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path, self.position = path, position
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if position and path.stat().st_size < position:
                raise FileError(f"{path} is shorter than its checkpoint says; start again with --fresh")
            with path.open("ab") as file:
                file.truncate(position)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}") from error

    def append(self, lines: Iterable[Line]) -> None:
        """Add lines, all or none."""
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        try:
            with self.path.open("r+b") as file:
                file.seek(self.position)
                file.write(data)
        except OSError as error:
            self._cut()
            raise FileError(f"cannot write {self.path}: {error.strerror}") from error
        self.position += len(data)

    def _cut(self) -> None:
        try:
            with self.path.open("r+b") as file:
                file.truncate(self.position)
        except OSError:
            pass  # the next run cuts it


def read(path: Path) -> Iterator[Line]:
    """The lines of a ledger."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error


class Book:
    """The messages of one round, in the order they were sent."""

    def __init__(self, round_number: int) -> None:
        self.round = round_number
        self.lines: list[Line] = []
        self.frames: list[bytes] = []
        self._parts: dict[bytes, dict[str, int]] = {}  # a broadcast frame is taken apart once

    def add(self, client: int, direction: str, frame: bytes) -> None:
        """Enter one message; `tensors` says where its bytes go, the rest is headers and checksums."""
        parts: dict[str, int] = {}
        for inside in frames_in(frame):
            if inside not in self._parts:
                self._parts[inside] = _tensor_bytes(inside)
            for name, n_bytes in self._parts[inside].items():
                parts[name] = parts.get(name, 0) + n_bytes
        entry = {"round": self.round, "client": client, "direction": direction, "n_bytes": len(frame)}
        self.lines.append({**entry, "tensors": parts})
        self.frames.append(frame)

    def n_bytes(self, direction: str) -> int:
        return sum(line["n_bytes"] for line in self.lines if line["direction"] == direction)

    def dump(self, folder: Path) -> None:
        """Every frame inside a message as a file of its own, as `perbit decode` and `perbit inspect` take it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for number, (line, frame) in enumerate(zip(self.lines, self.frames, strict=True)):
                name = f"r{self.round:05d}-{number:04d}-client{line['client']}-{line['direction']}"
                for part, inside in enumerate(frames_in(frame)):
                    (folder / f"{name}-{part}.pbit").write_bytes(inside)
        except OSError as error:
            raise FileError(f"cannot write to {folder}: {error.strerror}") from error


def _tensor_bytes(frame: bytes) -> dict[str, int]:
    return {tensor["name"]: tensor["n_bytes"] for tensor in perbit.inspect(frame)["tensors"]}
