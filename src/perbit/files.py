"""Arrays in files: .npy, .npz and .safetensors in, the same out; JSON out; every file is written whole or not at all."""

from __future__ import annotations

import glob
import importlib
import io
import json
import os
import secrets
import sys
import zipfile
import zlib
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from perbit import dtypes
from perbit.errors import PerbitError

_locks: Any = importlib.import_module("fcntl") if os.name == "posix" else None
_PARTIAL = "_perbit"  # what the names of files end in that are still being written
SUFFIXES = (".npy", ".npz", ".safetensors")
METADATA = "__metadata__"
STANDARD = Path("-")  # standard input or output
_SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


_PIECE = 1 << 19  # bytes written at once; more of them at a time cost Linux up to five times as long, in search of room


class FileError(PerbitError):
    """A file that cannot be read or written."""


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], private: bool = False) -> None:
    """Write to a neighbour file, then rename: a crash leaves the old file or the new one, never half of one. `-` is standard output.

    Args:
        private: nobody else may read it. Who keeps private files also removes, when it starts, what a killed writer of them has left;
            for other files that happens here.
    """
    if path == STANDARD:
        _write_out(write)
        return
    if not private:
        remove_leftovers(path.parent, path.name)
    try:
        temporary, handle = _new_neighbour(path, 0o600 if private else 0o666)
    except OSError as error:
        raise FileError(f"cannot write to {path.parent}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if _locks:  # as long as it is locked, nobody takes it for a leftover
                os.replace(temporary, path)
        if not _locks:  # Windows renames no open file
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write to an unbuffered file to the end; one call of the system may take less, on a full disk for instance."""
    source = memoryview(data)
    while len(source):
        source = source[file.write(source[:_PIECE]) :]


def _write_out(write: Callable[[IO[bytes]], object]) -> None:
    """To standard output, once all is there; an archive's writer moves back and forth."""
    whole = io.BytesIO()
    write(whole)
    sys.stdout.buffer.write(whole.getbuffer())
    sys.stdout.buffer.flush()


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what writers that were killed have left of a file, or of all files of a folder; those who still write hold a lock."""
    if not _locks:  # nobody can tell the dead from the living
        return
    pattern = name if name == "*" else glob.escape(name)
    for path in folder.glob(f".{pattern}.*{_PARTIAL}"):
        with suppress(OSError), path.open("rb") as file:
            _locks.flock(file, _locks.LOCK_EX | _locks.LOCK_NB)
            path.unlink(missing_ok=True)


def _new_neighbour(path: Path, mode: int) -> tuple[Path, int]:
    """A new file beside this one, open and locked; its mode is what the user's umask leaves of `mode`."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_PARTIAL}")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode)
        if _locks:
            with suppress(OSError):  # a file system without locks
                _locks.flock(handle, _locks.LOCK_EX | _locks.LOCK_NB)
        if os.fstat(handle).st_nlink:  # nobody took it for a leftover before it was locked
            return temporary, handle
        os.close(handle)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, whole or not at all; the folder is made if it is missing."""
    make_folder(path.parent)
    data = (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
    write_atomically(path, lambda file: file.write(data))


def read_bytes(path: Path) -> bytes:
    """What a file holds, or standard input if the path is `-`."""
    try:
        return sys.stdin.buffer.read() if path == STANDARD else path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error


def check_one_standard(*inputs: Path) -> None:
    """Standard input can be read once."""
    if inputs.count(STANDARD) > 1:
        raise FileError("only one input can be - (standard input); give the other by its name")


def read_tensors(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """One array from .npy, a dict of arrays from .npz or .safetensors. Standard input may be any of them."""
    if path != STANDARD and path.suffix not in _READERS:
        raise FileError(f"cannot tell what {path} holds: its name must end in {', '.join(SUFFIXES)}")
    if path != STANDARD and not path.is_file():
        raise FileError(f"cannot read {path}: no such file")
    try:
        if path == STANDARD:
            data = read_bytes(path)
            return _READERS[_suffix_of(data)](io.BytesIO(data))
        with path.open("rb") as file:
            return _READERS[path.suffix](file)
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"cannot read {path}: {error}") from error


def _suffix_of(data: bytes) -> str:
    """What bytes without a name hold."""
    return ".npy" if data.startswith(b"\x93NUMPY") else ".npz" if data.startswith(b"PK") else ".safetensors"


def _read_npy(file: IO[bytes]) -> NDArray[Any]:
    array = np.load(file, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is not a .npy file")
    return array


def _read_npz(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    """Member by member: `numpy.load` would give the tensor `a` twice where there is one called `a.npy` too."""
    tensors: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in tensors:
                raise ValueError(f"it holds two tensors called {name!r}")
            with archive.open(member) as inside:
                tensors[name] = np.lib.format.read_array(inside, allow_pickle=False)
    return tensors


def _read_safetensors(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    """In the order of the file. What the file says about itself comes as a tensor of bytes, `METADATA`."""
    library = _safetensors()
    data = file.read()
    try:
        found = dict(library.deserialize(data))
    except library.SafetensorError as error:
        raise ValueError(str(error)) from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    about = header.pop(METADATA, None)
    names = sorted(header, key=lambda name: (header[name]["data_offsets"], name))
    tensors = {name: _from_safetensors(name, found[name]) for name in names}
    return tensors | ({METADATA: as_metadata(about)} if about else {})


_READERS: dict[str, Callable[[IO[bytes]], NDArray[Any] | dict[str, NDArray[Any]]]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
}


def _from_safetensors(name: str, view: Mapping[str, Any]) -> NDArray[Any]:
    kind = _SAFETENSORS.get(view["dtype"])
    if kind is None:
        raise ValueError(f"tensor {name!r} is {view['dtype']}; known are {', '.join(_SAFETENSORS)}")
    flat = np.frombuffer(view["data"], dtypes.stored(kind).newbyteorder("<"))
    return flat.astype(dtypes.stored(kind), copy=False).view(dtypes.named(kind)).reshape(view["shape"])


def as_metadata(about: Mapping[str, str]) -> NDArray[np.uint8]:
    """What a .safetensors file says about itself as a tensor of bytes: so it goes through frames and other files."""
    return np.frombuffer(json.dumps(about, ensure_ascii=False, sort_keys=True).encode(), np.uint8)


def _metadata(tensor: NDArray[Any] | None) -> dict[str, str] | None:
    if tensor is None:
        return None
    try:
        about = json.loads(tensor.astype(np.uint8, casting="equiv").tobytes())
        if isinstance(about, dict) and all(isinstance(value, str) for value in about.values()):
            return about
    except (TypeError, ValueError):
        pass
    _refuse_names(".safetensors", [METADATA])
    return None


def write_tensors(path: Path, value: NDArray[Any] | Mapping[str, NDArray[Any]], suffix: str = "") -> None:
    """Write one array as .npy, or several as .npz or .safetensors. numpy's files hold bfloat16 and float8 as float32.

    Args:
        suffix: the kind of file, if its name does not say it.
    """
    suffix = suffix or path.suffix
    if isinstance(value, np.ndarray):
        if suffix != ".npy":
            raise FileError(f"one array goes into a .npy file, not {path.name}")
        write_atomically(path, lambda file: _write_npy(file, value))
    elif suffix == ".npz":
        # Zip archives cut names at NUL; of `a` and `a.npy`, numpy.load would read `a` under both names.
        _refuse_names(suffix, [name for name in value if "\0" in name or _is_shadowed(name, value)])
        write_atomically(path, lambda file: _write_npz(file, value))
    elif suffix == ".safetensors":
        about = _metadata(value.get(METADATA))
        tensors = {name: np.asarray(array, order="C") for name, array in value.items() if name != METADATA}
        data = _safetensors().numpy.save(tensors, about)
        write_atomically(path, lambda file: file.write(data))
    else:
        raise FileError(f"several tensors go into a .npz or .safetensors file, not {path.name}")


def _is_shadowed(name: str, names: Container[str]) -> bool:
    return name.endswith(".npy") and name.removesuffix(".npy") in names


def _refuse_names(suffix: str, names: list[str]) -> None:
    if names:
        raise FileError(f"a {suffix} file cannot hold a tensor called {names[0]!r}; choose another format")


def _write_npy(file: IO[bytes], array: NDArray[Any]) -> None:
    plain = array.astype(np.float32) if array.dtype.name in dtypes.STORED else array
    np.lib.format.write_array(file, plain, allow_pickle=False)


def _write_npz(file: IO[bytes], tensors: Mapping[str, NDArray[Any]]) -> None:
    """As numpy.savez, whose keyword arguments leave some names to itself."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_npy(member, array)


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise FileError('.safetensors files need the package safetensors: pip install "perbit[files]"') from None
    return safetensors
