"""The names and numbers of codecs. Neither is ever reused: frames written today must decode for ever."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar

from perbit.coding.codec import Codec
from perbit.errors import SpecError

_by_name: dict[str, type[Codec]] = {}
_by_id: dict[int, type[Codec]] = {}

_Class = TypeVar("_Class", bound=type[Codec])


def register(cls: _Class) -> _Class:
    """Class decorator: make a codec known by its name, and by its number if it has one."""
    if cls.name in _by_name:
        raise SpecError(f"a codec named {cls.name!r} is registered already: {_by_name[cls.name].__qualname__}")
    if cls.wire_id and cls.wire_id in _by_id:
        raise SpecError(
            f"wire id {cls.wire_id} belongs to {_by_id[cls.wire_id].name!r} already; leave it 0 outside perbit"
        )
    if not cls.name.isidentifier():
        raise SpecError(f"a codec's name must be an identifier, got {cls.name!r}")
    _by_name[cls.name] = cls
    if cls.wire_id:
        _by_id[cls.wire_id] = cls
    return cls


@cache
def _load_offered() -> None:
    """Codecs that other packages offer under the entry point `perbit.codecs`; perbit's own are there from the start."""
    for entry in entry_points(group="perbit.codecs"):
        try:
            cls = entry.load()
            if _by_name.get(cls.name) is not cls:
                register(cls)
        except Exception as error:  # whatever somebody else's package raises: the other codecs still work
            warnings.warn(f"perbit does without the codec {entry.name!r} = {entry.value!r}: {error!r}", stacklevel=2)


def classes() -> dict[str, type[Codec]]:
    """Every codec by name."""
    _load_offered()
    return dict(sorted(_by_name.items()))


def by_name(name: str) -> type[Codec] | None:
    if name not in _by_name:
        _load_offered()
    return _by_name.get(name)


def by_id(wire_id: int) -> type[Codec] | None:
    if wire_id not in _by_id:
        _load_offered()
    return _by_id.get(wire_id)
