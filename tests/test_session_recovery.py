"""Sessions: whatever is lost, repeated, damaged, forgotten or restarted is refused or healed, and state files outlive processes."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perbit
from perbit import presets
from perbit.protocol import Protocol
from perbit.session import ClientSession, ResyncNeeded, ServerSession, protocol_of
from perbit.session.envelope import Kind, seal
from session_exchange import EACH_PRESET, exchange, model, small, trained


def started(path: Path | None = None, rounds: int = 2) -> tuple[ServerSession, ClientSession]:
    rng = np.random.default_rng(0)
    server, client = ServerSession(protocol_of("mcm"), seed=0), ClientSession(path, seed=0)
    for i in range(rounds):
        exchange(server, "c", client, model(i), lambda x: trained(x, rng))
    return server, client


def test_a_client_outlives_its_process(tmp_path: Path) -> None:
    server, client = started(tmp_path / "state.npz")
    again = ClientSession(tmp_path / "state.npz")
    assert again.digest == client.digest == server.digest("c")
    exchange(server, "c", again, model(5), lambda x: x)
    assert server.n_resyncs == 0
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


@EACH_PRESET
def test_every_memory_survives_in_its_file(name: str, tmp_path: Path) -> None:
    """A client that is a new process for every message does the same as one that stays, bit for bit."""
    got = []
    for path in (None, tmp_path / "state.npz"):
        server, client = ServerSession(small(name), seed=0), ClientSession(path, seed=7)
        for i in range(4):
            client = client if path is None else ClientSession(path, seed=7)
            got.append(exchange(server, "c", client, model(i / 2, i), lambda x: trained(x, np.random.default_rng(0))))
        assert server.n_resyncs == 0
    for a, b in zip(got[:4], got[4:], strict=True):
        assert a is not None
        assert b is not None
        assert all(a[key].tobytes() == b[key].tobytes() for key in a)


@pytest.mark.parametrize("harm", ["delete", "truncate", "flip", "older", "not an archive"])
def test_a_lost_or_damaged_file_is_healed(harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.npz"
    server, _ = started(path, rounds=1)
    older = path.read_bytes()
    exchange(server, "c", ClientSession(path), model(2), lambda x: x)
    data = path.read_bytes()
    if harm == "delete":
        path.unlink()
    else:
        at = len(data) // 2  # inside of an array
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        path.write_bytes({"truncate": data[:-99], "flip": flipped, "older": older, "not an archive": b"?"}[harm])
    with caplog.at_level(logging.WARNING, "perbit.session"):
        got = exchange(server, "c", ClientSession(path), model(3), lambda x: x)
    assert got is not None
    assert np.array_equal(got["w"], model(3)["w"])
    assert server.n_resyncs == 1
    assert "resync" in caplog.text


def test_a_restarted_server_starts_over() -> None:
    _, client = started()
    server = ServerSession(protocol_of("mcm"), seed=0)
    exchange(server, "c", client, model(4), lambda x: x)
    assert server.digest("c") == client.digest


def test_an_old_full_frame_is_refused() -> None:
    server, client = ServerSession(protocol_of(), seed=0), ClientSession()
    full = server.send("c", model(1))
    client.receive(full)
    server.receive("c", client.reply())
    with pytest.raises(ResyncNeeded, match="old one"):
        client.receive(full)
    exchange(server, "c", client, model(2), None)


def test_damaged_answers_raise_decode_error_and_leave_the_others_alone() -> None:
    server, client = started()
    other = ClientSession()
    exchange(server, "other", other, model(3), None)
    client.receive(server.send("c", model(3)))
    answer = bytearray(client.reply(model(4)))
    answer[len(answer) // 2] ^= 4
    with pytest.raises(perbit.DecodeError, match="checksum"):
        server.receive("c", bytes(answer))
    assert server.digest("c") is None
    assert server.digest("other") == other.digest
    got = exchange(server, "c", client, model(5), lambda x: x)  # a full frame, at once
    assert got is not None
    assert np.array_equal(got["w"], model(5)["w"])


def test_a_result_that_is_dropped_has_not_happened() -> None:
    server, client = started()
    before = client.digest
    frame = server.send("c", model(8))
    client.receive(frame)  # training fails: no reply
    assert client.digest == before == server.digest("c")
    exchange(server, "c", client, model(9), lambda x: x)
    assert server.n_resyncs == 0
    with pytest.raises(perbit.EncodeError, match="no frame to answer"):
        client.reply()


def test_an_unwritable_file_leaves_the_client_where_it_was(tmp_path: Path) -> None:
    server, client = started(tmp_path / "state.npz")
    before = client.digest
    client.receive(server.send("c", model(8)))
    client.path = tmp_path / "state.npz" / "impossible.npz"
    with pytest.raises((perbit.PerbitError, OSError)):
        client.reply(model(8))
    assert client.digest == before == server.digest("c")


def test_old_state_files_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "1-2.npz", tmp_path / "3-4.npz"
    for path in (old, new):
        path.write_bytes(b"")
    week = time.time() - 8 * 24 * 3600
    os.utime(old, (week, week))
    started(tmp_path / "5-6.npz", rounds=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3-4.npz", "5-6.npz"]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    others, ours = ["data.npz", "notes.txt"], ["1-2.npz", ".1-3.npz.abcd"]
    for name in others + ours:
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (0, 0))
    server, client = ServerSession(protocol_of()), ClientSession(tmp_path / "7-8.npz")
    client.receive(server.send("a", {"w": np.ones(4, np.float32)}))
    client.reply()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "7-8.npz"])


def test_the_server_forgets_whom_it_has_not_heard_of_for_longest() -> None:
    server, clients = ServerSession(protocol_of(), max_clients=2), [ClientSession() for _ in range(3)]
    for who, client in enumerate(clients):
        client.receive(server.send(who, {"w": np.ones(4, np.float32)}))
        server.receive(who, client.reply())
    assert [server.digest(who) is None for who in range(3)] == [True, False, False]
    clients[0].receive(server.send(0, {"w": np.ones(4, np.float32)}))  # a full frame
    server.receive(0, clients[0].reply())
    assert server.digest(0) == clients[0].digest


@given(data=st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_by_both_sides(data: bytes) -> None:
    with pytest.raises(perbit.DecodeError):
        ServerSession(protocol_of()).receive("c", data)
    with pytest.raises(ResyncNeeded):
        ClientSession().receive(data)


def test_clients_send_nothing_but_answers() -> None:
    server, client = started()
    stray = ServerSession(protocol_of()).send("c", model())
    server.send("c", model(5))
    with pytest.raises(perbit.DecodeError):
        server.receive("c", stray)
    with pytest.raises(perbit.StateMismatch, match="asked nothing"):
        server.receive("c", client_ack(client))
    with pytest.raises(perbit.EncodeError, match="nothing was sent"):
        server.resync("nobody")


def client_ack(client: ClientSession) -> bytes:
    client.receive(ServerSession(protocol_of()).send("x", model()))
    return client.reply()


def test_a_client_cannot_flood_the_log() -> None:
    server = ServerSession(protocol_of())
    server.send("a", {"w": np.ones(4, np.float32)})
    with pytest.raises(ResyncNeeded) as caught:
        server.receive("a", seal(Kind.RESYNC, 1, bytes(8), b"x\nforged" * 100_000))
    assert len(str(caught.value)) < 2000
    assert "\n" not in str(caught.value)


EVENTS = [
    "fine", "evaluate", "no frame", "no answer", "old frame", "old answer", "bent frame", "bent answer", "new client",
    "no file", "new server",
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["mcm", "fedavg_topk_ef", "diana", "dore", "rand_mcm"]),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1), st.integers(0, 99)), max_size=14),
)
def test_whatever_happens_the_next_exchange_heals_it(name: str, events: list[tuple[str, int, int]]) -> None:
    with TemporaryDirectory() as folder:
        story = Story(presets.PRESETS[name].make(), Path(folder))
        for round_, (event, who, which) in enumerate(events):
            story.tell(event, who, which, model(round_ / 10, round_))
        for who in (0, 1):
            got = exchange(story.server, str(who), story.client(who), model(3, 77), lambda x: x)
            assert got is not None
            assert got["steps"] == 77


class Story:
    """Two clients in files, a server, and every frame ever sent."""

    def __init__(self, protocol: Protocol, folder: Path) -> None:
        self.protocol, self.folder = protocol, folder
        self.server = ServerSession(protocol)
        self.clients: dict[int, ClientSession] = {}
        self.down: list[bytes] = []
        self.up: list[bytes] = []

    def client(self, who: int) -> ClientSession:
        if who not in self.clients:
            self.clients[who] = ClientSession(self.folder / f"{who}.npz")
        return self.clients[who]

    def tell(self, event: str, who: int, which: int, tensors: dict[str, Any]) -> None:
        if event == "new server":
            self.server = ServerSession(self.protocol)
        if event in ("new client", "no file"):
            self.clients.pop(who, None)
        if event == "no file":
            (self.folder / f"{who}.npz").unlink(missing_ok=True)
        frame = self.server.send(str(who), tensors)
        self.down.append(frame)
        if event == "no frame":
            return
        if event == "old frame":
            frame = self.down[which % len(self.down)]
        try:
            received = self.client(who).receive(bent(frame, which) if event == "bent frame" else frame)
        except ResyncNeeded as needed:
            answer = needed.answer
        else:
            answer = self.client(who).reply(None if event == "evaluate" else received)
        self.up.append(answer)
        if event == "no answer":
            return
        if event == "old answer":
            answer = self.up[which % len(self.up)]
        self.take(who, bent(answer, which) if event == "bent answer" else answer)

    def take(self, who: int, answer: bytes) -> None:
        try:
            self.server.receive(str(who), answer)
        except perbit.DecodeError:
            assert self.server.digest(str(who)) is None
        else:
            assert self.server.digest(str(who)) == self.client(who).digest


def bent(frame: bytes, which: int) -> bytes:
    at = which * len(frame) // 100
    return frame[:at] + bytes([frame[at] ^ 0x10]) + frame[at + 1 :]
