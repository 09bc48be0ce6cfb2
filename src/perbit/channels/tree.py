"""Memories are trees: tuples of arrays, with the memory of an inner channel last. These are the only walks over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from perbit.kernels.api import F32

Memory = tuple[Any, ...]


def leaves(memory: Memory) -> Iterator[F32]:
    """All arrays, outermost first."""
    for part in memory:
        if isinstance(part, np.ndarray):
            yield part
        else:
            yield from leaves(part)


def rebuilt(like: Memory, arrays: Iterable[F32]) -> Memory:
    """A tree of the same form with these arrays in it.

    >>> rebuilt((np.zeros(2), (np.zeros(1),)), [np.ones(2), np.ones(1)])
    (array([1., 1.]), (array([1.]),))
    """
    given = iter(arrays)

    def fill(part: Memory) -> Memory:
        return tuple(next(given) if isinstance(item, np.ndarray) else fill(item) for item in part)

    return fill(like)


def freeze(memory: Memory) -> Memory:
    """Make every array read-only: a state is a value."""
    for part in memory:
        if isinstance(part, np.ndarray):
            part.flags.writeable = False
        elif part:
            freeze(part)
    return memory
