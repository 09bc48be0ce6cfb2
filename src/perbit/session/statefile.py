"""A client's end as one .npz file, written whole or not at all: plain arrays and JSON, each with the archive's checksum."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.bits import bytes_of
from perbit.channels import State
from perbit.channels.base import Memory, freeze
from perbit.errors import DecodeError
from perbit.files import FileError, read_tensors, write_tensors
from perbit.kernels.api import F32
from perbit.session.end import End
from perbit.session.model import Model
from perbit.session.wiring import Wiring

LOG = logging.getLogger("perbit.session")
_DAY = 24 * 3600
_OURS = re.compile(r"\d+-\d+\.npz|\.\d+-\d+\.npz\.\w+")  # RUN-NODE.npz, and what a killed writer left beside it
Arrays = dict[str, NDArray[Any]]


def save(path: Path, end: End) -> None:
    """Replace the file; a crash leaves the old one or the new one."""
    about = {
        "session": end.session.hex(),
        "sequence": end.sequence,
        "wiring": end.wiring.to_json().decode(),
        "schema": end.held.schema,
        "exact": list(end.held.exact),
        "up": _head(end.up),
        "down": _head(end.down),
        "digest": end.digest().hex(),
    }
    arrays = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8), **dict(_arrays(end))}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, _without_repeats(arrays))


def load(path: Path) -> End | None:
    """The end in a file, or None if there is none or it is damaged; a full frame from the server will replace it."""
    if not path.exists():
        return None
    try:
        arrays = read_tensors(path)
        assert isinstance(arrays, dict)
        return _restored(arrays)
    except (FileError, DecodeError, ValueError, KeyError, TypeError) as error:
        LOG.warning("the state in %s cannot be used, a resync will replace it: %s", path.name, error)
        return None


def remove_stale(folder: Path, days: float = 7) -> None:
    """Remove the states of runs that ended long ago."""
    for path in folder.glob("*"):  # none where there is no folder yet
        if not _OURS.fullmatch(path.name):
            continue
        try:
            if time.time() - path.stat().st_mtime > days * _DAY:
                path.unlink()
        except OSError as error:  # another process was faster, or owns it
            LOG.info("%s stays: %s", path.name, error)


def _head(state: State) -> dict[str, Any]:
    return {"sequence": state.sequence, "link": state.link.hex()}


def _arrays(end: End) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "held", end.held.flat
    for index, array in enumerate(end.held.exact.values()):
        yield f"exact{index}", array
    for name, state in (("up", end.up), ("down", end.down)):
        for index, array in enumerate(_leaves(state.memory)):
            yield f"{name}{index}", array


def _without_repeats(arrays: Arrays) -> Arrays:
    """A downlink that adds up steps remembers the model held: the same values need no second place in the file."""
    held = bytes_of(arrays["held"])
    return {name: x for name, x in arrays.items() if not (_is_memory(name) and bytes_of(x) == held)}


def _is_memory(name: str) -> bool:
    return name.startswith(("up", "down"))


def _restored(arrays: Arrays) -> End:
    about = json.loads(arrays["about"].tobytes())
    schema = tuple((name, dtype, tuple(shape)) for name, dtype, shape in about["schema"])
    exact = {name: arrays[f"exact{index}"] for index, name in enumerate(about["exact"])}
    held = Model(schema, _vector(arrays["held"]), exact)
    wiring = Wiring.from_json(about["wiring"].encode())
    sender, receiver = wiring.up.init(held.layout)[0], wiring.down.init(held.layout)[1]
    end = End(
        session=bytes.fromhex(about["session"]),
        sequence=about["sequence"],
        wiring=wiring,
        held=held,
        up=_state(sender, about["up"], arrays, "up"),
        down=_state(receiver, about["down"], arrays, "down"),
    )
    if end.digest().hex() != about["digest"]:
        raise ValueError("its parts do not belong together")
    return end


def _state(like: State, head: dict[str, Any], arrays: Arrays, name: str) -> State:
    """A state with the same tree of arrays as `like`."""
    n_arrays = len(list(_leaves(like.memory)))
    found = iter([_vector(arrays.get(f"{name}{i}", arrays["held"])) for i in range(n_arrays)])
    return State(like.layout, head["sequence"], bytes.fromhex(head["link"]), freeze(_filled(like.memory, found)))


def _leaves(memory: Memory) -> Iterator[F32]:
    for part in memory:
        if isinstance(part, np.ndarray):
            yield part
        else:
            yield from _leaves(part)


def _filled(like: Memory, arrays: Iterator[F32]) -> Memory:
    return tuple(next(arrays) if isinstance(part, np.ndarray) else _filled(part, arrays) for part in like)


def _vector(array: NDArray[Any]) -> F32:
    if array.dtype != np.float32 or array.ndim != 1:
        raise ValueError(f"a memory is {array.dtype.name}{array.shape}, not a vector of float32")
    array.flags.writeable = False  # states are values
    return array
