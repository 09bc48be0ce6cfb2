"""Stores of clients' states: in memory as values, on disk as rows of a file without a name."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perbit.channels import Channel, Direct, ErrorFeedback, Layout, Shifted, State
from perbit.channels.store import Changes, InMemory, OnDisk, Store, store_in
from perbit.channels.tree import freeze, leaves, rebuilt
from perbit.files import FileError
from perbit.protocols import presets
from perbit.protocols.protocol import Protocol
from perbit.session import ClientSession, ResyncNeeded, ServerSession
from session_exchange import exchange, is_same, noisy, trained

N = 50


def first(channel: Channel | None = None) -> State:
    return (channel or Shifted(Direct("raw"))).init(N)[1]


def state(number: int, like: State | None = None) -> State:
    """A state that no other number has."""
    like = like or first()
    filled = [np.full(array.shape, number, np.float32) for array in leaves(like.memory)]
    return State(like.layout, number, number.to_bytes(8, "little"), freeze(rebuilt(like.memory, filled)))


def same(a: State, b: State) -> bool:
    arrays = zip(leaves(a.memory), leaves(b.memory), strict=True)
    return (a.layout, a.sequence, a.link) == (b.layout, b.sequence, b.link) and all(
        np.array_equal(x, y) for x, y in arrays
    )


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return store_in(None if request.param == "memory" else tmp_path, first())


def test_what_is_put_comes_back(store: Store) -> None:
    assert same(store.get("anybody"), first())
    for number in range(1, 20):
        store = store.put({number: state(number), "last": state(number)})
    assert len(store) == 20
    for number in range(1, 20):
        assert same(store.get(number), state(number))
    assert same(store.get("last"), state(19))
    store = store.put({3: state(33)}, gone=[4, "nobody"])
    assert same(store.get(3), state(33))
    assert same(store.get(4), first())
    assert len(store) == 19


def test_states_are_read_only(store: Store) -> None:
    store = store.put({i: state(i) for i in range(1, 9)})
    for i in range(9):
        for array in leaves(store.get(i).memory):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_a_store_in_memory_is_a_value() -> None:
    old = InMemory(first()).put({1: state(1)})
    new = old.put({1: state(2), 2: state(3)}, gone=[])
    assert same(old.get(1), state(1))
    assert len(old) == 1
    assert same(new.get(1), state(2))


@pytest.mark.parametrize(
    "channel", [Direct("raw"), ErrorFeedback(Direct("raw")), Shifted(Shifted(Direct("raw")))], ids=repr
)
def test_any_memory_lies_on_disk(channel: Channel, tmp_path: Path) -> None:
    for end in channel.init(N):
        store: Store = OnDisk(tmp_path, end, cached=0)
        for i in range(5):
            store = store.put({i: state(i, end)})
        for i in range(5):
            assert same(store.get(i), state(i, end))


def test_states_of_some_tensors_only_lie_on_disk_too(tmp_path: Path) -> None:
    channel = Shifted(Direct("raw"))
    layouts = [Layout.of({"a": 30, "b": 20}), Layout.of({"a": 30}), Layout(())]
    store: Store = OnDisk(tmp_path, channel.init(layouts[0])[1], cached=0)
    states = {i: state(i, channel.init(layouts[i % 3])[1]) for i in range(12)}
    for i, kept in states.items():
        store = store.put({i: kept})
    states[3], states[4] = states[4], states[3]
    store = store.put({3: states[3], 4: states[4]})
    for i, kept in states.items():
        assert same(store.get(i), kept)


def file_size(store: OnDisk) -> int:
    store._file.flush()
    return os.fstat(store._file.fileno()).st_size


def test_rows_are_reused_after_clients_have_gone(tmp_path: Path) -> None:
    store = OnDisk(tmp_path, first(), cached=0)
    store.put({i: state(i) for i in range(8)})
    size = file_size(store)
    assert size == 8 * 4 * N
    for round_ in range(20):
        store.put({}, gone=[f"{round_ - 1}-{i}" if round_ else i for i in range(8)])
        assert len(store) == 0
        store.put({f"{round_}-{i}": state(i) for i in range(8)})
        assert len(store) == 8
    assert file_size(store) == size
    assert all(same(store.get(f"19-{i}"), state(i)) for i in range(8))


def test_clients_with_one_state_share_a_row_until_they_go_on(tmp_path: Path) -> None:
    store, common = OnDisk(tmp_path, first(), cached=2), state(100)
    for i in range(6):
        store.put({i: common})
    assert file_size(store) == 4 * N
    assert len(store) == 6
    store.put({0: state(7), 1: state(8)})
    store.put({}, gone=[2])
    assert file_size(store) == 3 * 4 * N
    assert [same(store.get(i), state(expected)) for i, expected in enumerate((7, 8))] == [True, True]
    assert same(store.get(2), first())
    assert all(same(store.get(i), common) for i in (3, 4, 5))
    store.put({}, gone=[3, 4, 5])  # only now is their row free
    store.put({9: state(9)})
    assert file_size(store) == 3 * 4 * N
    assert all(same(store.get(i), state(expected)) for i, expected in ((0, 7), (1, 8), (9, 9)))


def test_what_was_damaged_on_disk_is_found_and_healed(tmp_path: Path) -> None:
    server, clients = ServerSession(presets.rand_mcm(folder=str(tmp_path)), 0), [ClientSession() for _ in range(9)]
    for round_ in range(2):
        for i, client in enumerate(clients):
            exchange(server, i, client, noisy(round_), lambda x: trained(x, np.random.default_rng(0)))
    for store in (server._server.uplinks, server._server.places):
        assert isinstance(store, OnDisk)
        store._file.seek(store._row_bytes * store._heads[0].row + 40)
        store._file.write(b"\xff")
        with pytest.raises(ResyncNeeded):
            clients[0].receive(server.send(0, noisy(2)))
        exchange(server, 0, clients[0], noisy(2), lambda x: x)
        for i in range(1, 9):
            exchange(server, i, clients[i], noisy(3), lambda x: x)
        exchange(server, 0, clients[0], noisy(3), lambda x: x)
        for i in range(1, 9):
            exchange(server, i, clients[i], noisy(4), lambda x: x)
    assert server.n_resyncs == 2


def test_few_states_are_held_in_memory(tmp_path: Path) -> None:
    store = OnDisk(tmp_path, first(), cached=3)
    for i in range(50):
        store.put({i: state(i)})
        assert len(store._latest) <= 3
    store.put({}, gone=[49, 48])
    assert len(store._latest) == 1
    assert same(store.get(49), first())


def test_nothing_is_left_in_the_folder_and_the_file_is_closed(tmp_path: Path) -> None:
    store = OnDisk(tmp_path / "new" / "folder", first())
    store.put({1: state(1)})
    file = store._file
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    del store
    gc.collect()
    assert file.closed


def test_stores_in_one_folder_do_not_collide(tmp_path: Path) -> None:
    stores = [OnDisk(tmp_path, first(), cached=0) for _ in range(3)]
    for number, store in enumerate(stores):
        store.put({i: state(100 * number + i) for i in range(4)})
    for number, store in enumerate(stores):
        assert all(same(store.get(i), state(100 * number + i)) for i in range(4))


def test_a_folder_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="cannot keep memories"):
        OnDisk(tmp_path / "file" / "folder", first())


# --- changes on top -----------------------------------------------------------------------------------------------------


def test_changes_are_seen_at_once_and_written_together(store: Store) -> None:
    store = store.put({1: state(1), 2: state(2)})
    changes = Changes(store)
    changes.put(3, state(3))
    changes.put(1, state(11))
    changes.remove(2)
    assert same(changes.get(1), state(11))
    assert same(changes.get(2), first())
    assert same(changes.get(3), state(3))
    if store.is_final:  # a store on disk is written at once: the memories of a round's clients do not pile up
        assert same(store.get(1), state(11))
    else:
        assert same(store.get(1), state(1))
        assert len(store) == 2
    settled = changes.settled()
    assert len(settled) == 2
    assert same(settled.get(1), state(11))
    assert same(settled.get(2), first())


def test_who_goes_and_comes_back_is_there_and_who_comes_and_goes_is_not(store: Store) -> None:
    store = store.put({1: state(1)})
    changes = Changes(store)
    changes.remove(1)
    changes.put(1, state(7))
    changes.put(2, state(8))
    changes.remove(2)
    settled = changes.settled()
    assert same(settled.get(1), state(7))
    assert same(settled.get(2), first())
    assert len(settled) == 1


# --- in a run -----------------------------------------------------------------------------------------------------------


def protocols(folder: str | None) -> list[Protocol]:
    shifted = Shifted(Direct("qsgd(7) | rans"))
    return [presets.rand_mcm(folder=folder), Protocol.of("diana", shifted, Direct("raw"), folder=folder)]


@pytest.mark.parametrize("which", [0, 1], ids=["rand_mcm", "diana"])
def test_a_run_on_disk_is_the_run_in_memory(which: int, tmp_path: Path) -> None:
    """Bit for bit, with absences, a client that is forgotten, and more clients than are cached."""
    runs: list[Any] = []
    for folder in (None, str(tmp_path)):
        server, clients, got = ServerSession(protocols(folder)[which], 0), [ClientSession() for _ in range(9)], []
        for round_ in range(6):
            for i in range(9):
                if (i + round_) % 3 != 0:
                    step = lambda x, i=i, r=round_: trained(x, np.random.default_rng([i, r]))  # noqa: E731
                    got.append(exchange(server, i, clients[i], noisy(round_), step))
            server.forget(round_)
        runs.append((got, server))
    (in_memory, _), (on_disk, server) = runs
    assert all(is_same(a, b) for a, b in zip(in_memory, on_disk, strict=True))
    assert isinstance(server._server.uplinks, OnDisk)
    assert len(server._server.uplinks._latest) <= 4
    assert list(tmp_path.iterdir()) == []


def test_two_sessions_may_share_a_folder(tmp_path: Path) -> None:
    servers = [ServerSession(presets.rand_mcm(folder=str(tmp_path)), 0) for _ in range(2)]
    clients = [[ClientSession() for _ in range(6)] for _ in range(2)]
    for round_ in range(4):
        for server, own in zip(servers, clients, strict=True):
            for i, client in enumerate(own):
                exchange(server, i, client, noisy(round_), lambda x: x)
    assert [server.n_resyncs for server in servers] == [0, 0]


def test_a_write_that_fails_gives_its_row_to_nobody_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = OnDisk(tmp_path, first(), cached=1)
    store.put({0: state(0), 1: state(1), 2: state(2)})
    store.put({}, [1])

    def full(*_: object) -> None:
        raise FileError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr("perbit.channels.store._drain", full)
        with pytest.raises(FileError):
            store.put({9: state(9)})
    store.put({10: state(10), 11: state(11)})
    assert [same(store.get(client), state(client)) for client in (0, 2, 10, 11)] == [True] * 4
