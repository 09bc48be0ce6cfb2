"""Run states as one .npz file, written whole or not at all. Plain arrays and JSON, nothing executable.

Values are packed as JSON; arrays and long bytes go into the archive, once each, and shared parts stay shared.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from perbit.channels import Layout, State
from perbit.channels.store import InMemory, Store
from perbit.downlinks import AveragedServer, AveragedWorker, Broadcast, OwnLinks
from perbit.files import FileError, write_atomically
from perbit.protocol import Server, Worker

PROTOCOL_TYPES = (Server, Worker, State, Layout, Broadcast, OwnLinks, AveragedServer, AveragedWorker)
_SHORT = 64  # bytes that stay in the JSON


class _Packer:
    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.objects: list[Any] = []  # packed dataclasses, each after those it holds
        self.seen: dict[int, Any] = {}  # by identity: shared parts are packed once

    def pack(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes) and len(value) <= _SHORT:
            return {"bytes": value.hex()}
        if isinstance(value, tuple | list):
            return {"tuple": [self.pack(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": {name: self.pack(item) for name, item in value.items()}}
        if id(value) not in self.seen:
            self.seen[id(value)] = self._pack_once(value)
        return self.seen[id(value)]

    def _pack_once(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"array": self._add(value)}
        if isinstance(value, bytes):
            return {"long": self._add(np.frombuffer(value, np.uint8))}
        if isinstance(value, InMemory):
            return {"store": [self.pack(value.get(worker)) for worker in range(len(value))]}
        if isinstance(value, Store):
            raise FileError("a run that keeps its memories in files cannot be checkpointed")
        fields = {f.name: self.pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
        self.objects.append({"type": type(value).__name__, "fields": fields})
        return {"object": len(self.objects) - 1}

    def _add(self, array: Any) -> str:
        name = f"a{len(self.arrays)}"
        self.arrays[name] = array
        return name


def save(path: Path, value: Any, about: dict[str, Any]) -> None:
    """Write a checkpoint; `about` must be the same when it is read."""
    packer = _Packer()
    root = packer.pack(value)
    text = json.dumps({"about": about, "objects": packer.objects, "root": root})
    arrays = {**packer.arrays, "json": np.frombuffer(text.encode(), np.uint8)}
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def restore(path: Path, about: dict[str, Any], *types: type) -> Any:
    """Read a checkpoint of the same run; `types` are the caller's own dataclasses in it."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        content = json.loads(arrays.pop("json").tobytes())
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise FileError(f"cannot read the checkpoint {path}: {error}") from error
    if json.dumps(content["about"]) != json.dumps(about):  # as text: the order of rules counts
        raise FileError(f"{path} is a checkpoint of another run; use other options, another --output, or no --resume")
    known = {cls.__name__: cls for cls in (*PROTOCOL_TYPES, *types)}
    return _Unpacker(content["objects"], arrays, known).unpack(content["root"])


class _Unpacker:
    def __init__(self, packed: list[Any], arrays: dict[str, Any], types: dict[str, Any]) -> None:
        self.arrays, self.objects = arrays, []
        for array in arrays.values():
            array.flags.writeable = False  # states are values
        for entry in packed:
            fields = {name: self.unpack(item) for name, item in entry["fields"].items()}
            self.objects.append(types[entry["type"]](**fields))

    def unpack(self, packed: Any) -> Any:
        if not isinstance(packed, dict):
            return packed
        (kind, content), *_ = packed.items()
        if kind == "bytes":
            return bytes.fromhex(content)
        if kind == "long":
            return self.arrays[content].tobytes()
        if kind == "tuple":
            return tuple(self.unpack(item) for item in content)
        if kind == "dict":
            return {name: self.unpack(item) for name, item in content.items()}
        if kind == "array":
            return self.arrays[content]
        if kind == "store":
            return InMemory([self.unpack(item) for item in content])
        return self.objects[content]
