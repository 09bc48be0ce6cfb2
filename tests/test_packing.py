"""Packing: states as JSON and plain arrays, there and back; what is shared stays shared, and strangers get DecodeError."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import perbit
from perbit.channels import Direct, ErrorFeedback, Layout, Shifted, State
from perbit.channels.packing import from_text, restore, save, to_text
from perbit.channels.store import InMemory, OnDisk
from perbit.files import FileError


@dataclass(frozen=True, eq=False)
class Pair:
    left: Any
    right: Any


@dataclass
class Counted:
    value: Any
    derived: int = field(default=7, init=False)


TYPES = (Pair, Counted, State, Layout, Direct, ErrorFeedback, Shifted, perbit.Plan)

KEYS = st.integers() | st.text(max_size=9) | st.tuples(st.integers(), st.text(max_size=3)) | st.binary(max_size=99)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=200)
    | st.sampled_from(["topk(0.01) | qsgd(15) | rans", "raw", "lowrank(4) | fp16"]).map(perbit.codec)
)
ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]), hnp.array_shapes(min_dims=0, min_side=0)
)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(KEYS, inner, max_size=4)
            | st.builds(Pair, inner, inner)
            | st.builds(InMemory, inner, st.dictionaries(KEYS, inner, max_size=2))
        ),
        max_leaves=12,
    )


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, Pair | InMemory):
        return same(vars(a), vars(b))
    return bool(a == b or (a != a and b != b))


@given(trees(PLAIN))
def test_descriptions_there_and_back(value: Any) -> None:
    if any(isinstance(part, bytes) and len(part) > 64 for part in parts(value)):
        with pytest.raises(perbit.EncodeError, match="holds no arrays"):
            to_text(value)
    else:
        assert same(from_text(to_text(value), TYPES), value)


def parts(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [part for item in value for part in parts(item)]
    if isinstance(value, dict):
        return [part for item in value.items() for part in parts(item)]
    return parts(vars(value)) if isinstance(value, Pair | InMemory) else [value]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=trees(PLAIN | ARRAYS))
def test_files_there_and_back(value: Any, tmp_path: Path) -> None:
    save(tmp_path / "value.npz", value, {"of": "a test"})
    back = restore(tmp_path / "value.npz", TYPES, {"of": "a test"})
    assert same(back, value)
    assert [path.name for path in tmp_path.iterdir()] == ["value.npz"]


def test_lists_come_back_as_tuples_and_derived_fields_are_made_anew() -> None:
    back = from_text(to_text(Counted([1, [2.5]])), TYPES)
    assert back.value == (1, (2.5,))
    assert back.derived == 7


def test_what_is_shared_is_written_once_and_stays_shared(tmp_path: Path) -> None:
    array = np.arange(100_000, dtype=np.float32)
    state = State(Layout.of(100_000), 3, bytes(8), (array, ()))
    save(tmp_path / "a.npz", {"one": state, "two": Pair(state, array), "three": (array, array)})
    back = restore(tmp_path / "a.npz", TYPES)
    assert back["one"] is back["two"].left
    assert back["one"].memory[0] is back["two"].right is back["three"][0] is back["three"][1]
    assert (tmp_path / "a.npz").stat().st_size < 4 * 100_000 + 5000
    assert not back["three"][0].flags.writeable  # states are values


def test_equal_arrays_that_are_not_shared_stay_apart(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", (np.zeros(3), np.zeros(3)))
    one, two = restore(tmp_path / "a.npz", TYPES)
    assert one is not two


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, np.float32(1), 1j, Path("x"), lambda: 0], ids=lambda value: type(value).__name__
)
def test_what_cannot_be_written_says_so(value: Any, tmp_path: Path) -> None:
    with pytest.raises(perbit.EncodeError, match="cannot write down"):
        to_text((value,))
    with pytest.raises(perbit.EncodeError, match="cannot write down"):
        save(tmp_path / "a.npz", (value,))
    assert list(tmp_path.iterdir()) == []


def test_stores_on_disk_stay_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="files of its own"):
        save(tmp_path / "a.npz", OnDisk(tmp_path, Direct("raw").init(3)[0]))


# --- strangers ------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=60))
def test_arbitrary_text_ends_in_decode_error(text: str) -> None:
    with pytest.raises(perbit.DecodeError):
        from_text(text, TYPES)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["Pair", "Direct", "raw"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tuple", "dict", "object", "codec", "bytes", "float", "array", "long", "store", "left"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(["Pair", "Direct", "Plan", "State", "Popen"]), JSON).map(list), max_size=3), JSON
)
def test_arbitrary_content_is_a_value_or_decode_error(objects: list[Any], root: Any) -> None:
    with suppress(perbit.DecodeError):
        from_text(json.dumps({"objects": objects, "root": root}), TYPES)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"root":1}', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"objects":[["Popen",{}]],"root":1}', "no type called 'Popen'"),
        ('{"objects":[["Pair",{"left":1}]],"root":1}', "cannot be read"),
        ('{"objects":[["Pair",{"left":1,"right":2,"more":3}]],"root":1}', "cannot be read"),
        ('{"objects":[["Direct",{"plan":{"codec":"nosuch(1)"}}]],"root":1}', "cannot be read"),
        ('{"objects":[["Shifted",{"inner":7}]],"root":1}', "cannot be read"),
        ('{"objects":[],"root":{"object":5}}', "cannot be read"),
        ('{"objects":[],"root":{"array":"a0"}}', "cannot be read"),
        ('{"objects":[],"root":{"eval":"1+1"}}', "no kind of value called 'eval'"),
        ('{"objects":[],"root":{"unpack":1}}', "no kind of value called 'unpack'"),
        ('{"objects":[],"root":[1]}', "a list stands"),
        ('{"objects":[],"root":{"bytes":"0"}}', "cannot be read"),
        ('{"objects":[],"root":{"dict":[[{"dict":[]},1]]}}', "cannot be read"),
        ('{"objects":[],"root":{}}', "cannot be read"),
    ],
)
def test_hostile_text_ends_in_decode_error(text: str, match: str) -> None:
    with pytest.raises(perbit.DecodeError, match=match):
        from_text(text, TYPES)


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for content in (b"", b"PK", b"no archive", bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(FileError, match="cannot read"):
            restore(path, TYPES)
    np.savez(path, a0=np.zeros(3))
    with pytest.raises(FileError, match="cannot read"):
        restore(path, TYPES)
    np.save(tmp_path / "b.npy", np.zeros(3))
    with pytest.raises(FileError, match="cannot read"):
        restore(tmp_path / "b.npy", TYPES)
    np.savez(path, json=np.array([{"a": 1}], dtype=object))  # a pickle is not even opened
    with pytest.raises(FileError, match="cannot read"):
        restore(path, TYPES)
    with pytest.raises(FileError, match="cannot read"):
        restore(tmp_path / "missing.npz", TYPES)
    save(path, 1, "mine")
    with pytest.raises(FileError, match="another run"):
        restore(path, TYPES, "yours")
