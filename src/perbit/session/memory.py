"""How many bytes a session holds, and a limit that it keeps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from perbit.channels.store import Changes, OnDisk, Store
from perbit.errors import SpecError

RECORD = 2048  # what a client takes beside its memories: its name, numbers and digests, in Python's tables
ASKED = 512  # what it takes to remember that a client asked for everything
FOR_QUESTIONS = 16  # one part in so many of a limit is for that
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def n_bytes_of(size: str | int | None) -> int | None:
    """A size as a number of bytes.

    >>> n_bytes_of("2 GB"), n_bytes_of("1.5 MiB"), n_bytes_of(1000)
    (2000000000, 1572864, 1000)
    """
    if size is None:
        return None
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    n_bytes = size if type(size) is int else 0
    if found is not None:
        n_bytes = int(float(found[1]) * _UNITS.get(found[2].upper(), 0))
    if not (isinstance(n_bytes, int) and n_bytes > 0):
        raise SpecError(f'memory is a number of bytes or a text such as "2 GB", got {size!r}')
    return n_bytes


def footprint(*values: Any) -> int:
    """The bytes of all arrays and frames that these values hold, each counted once."""
    seen: dict[int, int] = {}
    for value in values:
        _walk(value, seen)
    return sum(seen.values())


def _walk(value: Any, seen: dict[int, int]) -> None:
    if isinstance(value, np.ndarray):
        owner = value.base if isinstance(value.base, np.ndarray) else value
        seen[id(owner)] = owner.nbytes
    elif isinstance(value, bytes):
        seen[id(value)] = len(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            _walk(item, seen)
    elif isinstance(value, tuple | list):
        for item in value:
            _walk(item, seen)
    elif isinstance(value, OnDisk):
        _walk(tuple(value.cached_states), seen)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if not isinstance(item, Store) or isinstance(item, OnDisk):
                _walk(item, seen)


def held_by_clients(states: Changes) -> int:
    """An upper bound of what is held in memory of all clients: many may share a state."""
    return states.n_held * footprint(states.store.first)
