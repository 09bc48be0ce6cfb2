"""The one serialiser of states: dataclasses, tuples, arrays and codecs as JSON and plain arrays, nothing executable.

Shared parts are written once and stay shared. Reading is safe for bytes from strangers: only dataclasses of the types given are made,
and whatever does not fit ends in a DecodeError.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.channels.store import ROWS, InMemory, OnDisk, Store
from perbit.coding.codec import Codec
from perbit.coding.spec import parse
from perbit.errors import DecodeError, EncodeError
from perbit.files import FileError, write_atomically

Arrays = dict[str, NDArray[Any]]
_SHORT = 64  # bytes that stay in the JSON


def to_text(value: Any) -> str:
    """A value without arrays as JSON: a description that can be sent."""
    packer = _Packer()
    text = packer.text(value, None)
    if packer.arrays:
        raise EncodeError(f"a description holds no arrays, but {type(value).__name__} does")
    return text


def from_text(text: str, types: Collection[type]) -> Any:
    """What `to_text` wrote."""
    return _unpacked(text, {}, types)[0]


def save(path: Path, value: Any, about: Any = None, private: bool = False) -> None:
    """Write a value to an .npz file, whole or not at all; `about` must be the same when it is read. `private`: for the user alone."""
    packer = _Packer()
    text = packer.text(value, about)
    arrays = {**packer.arrays, "json": np.frombuffer(text.encode(), np.uint8)}
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays), private)  # type: ignore[arg-type,unused-ignore]


def restore(path: Path, types: Collection[type], about: Any = None) -> Any:
    """What `save` wrote. FileError if it cannot be read, or is about something else. Durable files are looked for beside it."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        value, found = _unpacked(arrays.pop("json").tobytes().decode(), arrays, types, path.parent)
    except Exception as error:  # a damaged archive can lead to any of them
        raise FileError(f"cannot read {path}: {error}") from error
    if json.dumps(found) != json.dumps(about):  # as text: the order of rules counts
        raise FileError(f"{path} is a checkpoint of another run; use other options, another --output, or no --resume")
    return value


class _Packer:
    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self.objects: list[Any] = []  # packed dataclasses, each after those it holds
        self.seen: dict[int, tuple[Any, Any]] = {}  # by identity, kept alive so that it stays unique

    def text(self, value: Any, about: Any) -> str:
        root = self.pack(value)
        return json.dumps({"about": about, "objects": self.objects, "root": root}, separators=(",", ":"))

    def pack(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.integer):  # a client's name, as a loop over an array gives it
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, bytes) and len(value) <= _SHORT:
            return {"bytes": value.hex()}
        if isinstance(value, tuple | list):
            return {"tuple": [self.pack(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(item)] for key, item in value.items()]}
        if id(value) not in self.seen:
            self.seen[id(value)] = self._pack_once(value), value
        return self.seen[id(value)][0]

    def _pack_once(self, value: Any) -> Any:
        if isinstance(value, Codec):
            return {"codec": str(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._add(value)}
        if isinstance(value, bytes):
            return {"long": self._add(np.frombuffer(value, np.uint8))}
        if isinstance(value, InMemory):
            return {"store": self.pack((value.first, value.states))}
        if isinstance(value, OnDisk) and value.is_durable:
            return {"rows": self.pack((value.name, value.first, value.cached, value.table()))}
        if isinstance(value, Store):
            raise FileError("what keeps its memories in files of its own cannot be written to another one")
        if not dataclasses.is_dataclass(value):
            raise EncodeError(f"cannot write down a {type(value).__name__}")
        fields = {f.name: self.pack(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        self.objects.append([type(value).__name__, fields])
        return {"object": len(self.objects) - 1}

    def _add(self, array: Any) -> str:
        name = f"a{len(self.arrays)}"
        self.arrays[name] = array
        return name


def _unpacked(text: str, arrays: Arrays, types: Collection[type], folder: Path | None = None) -> tuple[Any, Any]:
    try:
        content = json.loads(text)
        unpacker = _Unpacker(content["objects"], arrays, {cls.__name__: cls for cls in types}, folder)
        return unpacker.unpack(content["root"]), content.get("about")
    except DecodeError:
        raise
    except Exception as error:  # whatever the text of a stranger leads to while values are made of it
        raise DecodeError(f"what was written down cannot be read: {error}") from error


class _Unpacker:
    def __init__(self, packed: list[Any], arrays: Arrays, types: Mapping[str, Any], folder: Path | None) -> None:
        self.arrays, self.objects, self.folder = arrays, [], folder
        for array in arrays.values():
            array.flags.writeable = False  # states are values
        for name, fields in packed:
            if name not in types:
                raise DecodeError(f"there is no type called {name!r} here")
            self.objects.append(types[name](**{key: self.unpack(item) for key, item in fields.items()}))

    def unpack(self, packed: Any) -> Any:
        if not isinstance(packed, dict):
            if isinstance(packed, list):
                raise DecodeError("a list stands where a value was expected")
            return packed
        ((kind, content),) = packed.items()
        return getattr(self, f"_{kind}")(content) if kind in _KINDS else _unknown(kind)

    def _float(self, content: str) -> float:
        return float(content)

    def _bytes(self, content: str) -> bytes:
        return bytes.fromhex(content)

    def _long(self, content: str) -> bytes:
        return self.arrays[content].tobytes()

    def _tuple(self, content: list[Any]) -> tuple[Any, ...]:
        return tuple(self.unpack(item) for item in content)

    def _dict(self, content: list[Any]) -> dict[Any, Any]:
        return {self.unpack(key): self.unpack(item) for key, item in content}

    def _array(self, content: str) -> NDArray[Any]:
        return self.arrays[content]

    def _codec(self, content: str) -> Codec:
        return parse(content)

    def _store(self, content: Any) -> InMemory:
        return InMemory(*self.unpack(content))

    def _rows(self, content: Any) -> OnDisk:
        name, first, cached, heads = self.unpack(content)
        if self.folder is None or not name.startswith(ROWS) or Path(name).name != name:
            raise DecodeError(f"there is no file of memories called {name!r} here")
        return OnDisk(self.folder, first, cached, is_durable=True, name=name, heads=heads)

    def _object(self, content: int) -> Any:
        return self.objects[content]


_KINDS = {"float", "bytes", "long", "tuple", "dict", "array", "codec", "store", "rows", "object"}


def _unknown(kind: str) -> Any:
    raise DecodeError(f"there is no kind of value called {kind!r}")
