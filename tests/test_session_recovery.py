"""Sessions: whatever is lost, repeated, damaged, forgotten or restarted is refused or healed, and state files outlive processes."""

from __future__ import annotations

import logging
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perbit
from perbit.channels import packing
from perbit.channels.packing import restore, save
from perbit.files import FileError
from perbit.protocols.downlinks import Versions
from perbit.protocols.protocol import Protocol
from perbit.session import ClientSession, ResyncNeeded, ServerSession, StaleAnswer, TooManyResyncs, protocol_of
from perbit.session.clientfiles import ClientFiles
from perbit.session.envelope import Kind, ask_for_resync, enclose
from perbit.session.server import STATE_TYPES
from session_exchange import EACH_PRESET, exchange, is_same, kind, model, noisy, session, small, trained

STATES = ["state-0.npz", "state-1.npz"]
SLOWLY_TOLD = ["mcm", "federated"]  # without and with an anchor


def started(
    folder: Path | None = None, rounds: int = 2, protocol: str = "mcm", **more: Any
) -> tuple[ServerSession, ClientSession]:
    rng = np.random.default_rng(0)
    server, client = ServerSession(protocol_of(protocol), seed=0, **more), ClientSession(folder)
    for i in range(rounds):
        exchange(server, "c", client, noisy(i), lambda x: trained(x, rng))
    return server, client


# --- state in files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", SLOWLY_TOLD)
def test_a_client_outlives_its_process(protocol: str, tmp_path: Path) -> None:
    server, client = started(tmp_path / "own", protocol=protocol)
    again = ClientSession(tmp_path / "own")
    assert again.digest == client.digest == server.digest("c")
    exchange(server, "c", again, noisy(5), lambda x: x)
    assert server.n_resyncs == 0
    assert isinstance(server.protocol.downlink, Versions)
    anchor, *states = sorted(path.name for path in (tmp_path / "own").iterdir())
    assert anchor.startswith("anchor-")
    assert states == STATES
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "own").iterdir())
    assert (tmp_path / "own").stat().st_mode & 0o077 == 0  # a model and its residuals are nobody else's business


@EACH_PRESET
def test_every_memory_survives_in_its_files(name: str, tmp_path: Path) -> None:
    """A client that is a new process for every message does the same as one that stays, bit for bit."""
    got = []
    for folder in (None, tmp_path):
        server, client = session(small(name)), ClientSession(folder)
        for i in range(5):
            client = client if folder is None else ClientSession(folder)
            step = None if i == 2 else lambda x: trained(x, np.random.default_rng(0))
            got.append(exchange(server, "c", client, noisy(i, i), step))
        assert server.n_resyncs == 0
    for a, b in zip(got[:5], got[5:], strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or is_same(a, b)


@EACH_PRESET
def test_an_answer_that_got_lost_is_forgotten_by_the_files_too(name: str, tmp_path: Path) -> None:
    """Both states are on disk: whichever the server knows, a new process goes on from it."""
    server = session(small(name))
    for i in range(8):
        client = ClientSession(tmp_path)
        frame = server.send("c", noisy(i))
        assert (kind(frame) == "FULL") == (i == 0)
        answer = client.reply(trained(client.receive(frame), np.random.default_rng(i)))
        if i in (0, 3, 4):
            server.receive("c", answer)
            assert server.digest("c") == client.digest


def test_evaluation_writes_no_model_and_loses_no_state(tmp_path: Path) -> None:
    server, client = started(tmp_path, rounds=3)
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    for _ in range(3):
        exchange(server, "c", client, noisy(2), None)
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before
    client.receive(server.send("c", noisy(4)))
    client.reply(noisy(5))  # lost; the state before it must be the one that stays on disk
    exchange(server, "c", ClientSession(tmp_path), noisy(6), lambda x: x)
    assert server.n_resyncs == 0


HARMS = ["delete", "truncate", "flip", "not an archive", "empty"]


def harm(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how != "delete":
        at = len(data) // 2  # inside of an array
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        path.write_bytes({"truncate": data[:-99], "flip": flipped, "not an archive": b"?", "empty": b""}[how])


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("protocol", SLOWLY_TOLD)
def test_lost_or_damaged_files_are_healed(
    how: str, protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = started(tmp_path, rounds=3, protocol=protocol)
    for path in list(tmp_path.glob("state-*")):
        harm(path, how)
    with caplog.at_level(logging.WARNING, "perbit.session"):
        got = exchange(server, "c", client := ClientSession(tmp_path), noisy(3), lambda x: x)
    assert got is not None
    np.testing.assert_allclose(got["w"], noisy(3)["w"], atol=1e-5)
    assert server.n_resyncs == 1
    assert "resync" in caplog.text
    assert server.digest("c") == client.digest


@pytest.mark.parametrize("how", HARMS)
def test_one_damaged_state_of_two_is_no_loss_if_it_is_the_older(how: str, tmp_path: Path) -> None:
    server, client = started(tmp_path, rounds=3)
    sequences = {name: restore_sequence(tmp_path / name) for name in STATES}
    harm(tmp_path / min(STATES, key=lambda name: sequences[name]), how)
    again = ClientSession(tmp_path)
    assert again.digest == client.digest
    exchange(server, "c", again, noisy(7), lambda x: x)
    assert server.n_resyncs == 0


def restore_sequence(path: Path) -> int:
    holding = ClientFiles(path.parent)._read(path.name)
    assert holding is not None
    return holding[1].sequence


@pytest.mark.parametrize("how", ["delete", "truncate", "flip", "another"])
def test_a_lost_or_wrong_anchor_is_healed(how: str, tmp_path: Path) -> None:
    """The anchor is a file of its own; what does not belong to the state is noticed, at the latest when it is needed."""
    server, _ = started(tmp_path, protocol="federated")
    other = tmp_path / "other"
    if how == "another":
        started(other, protocol="federated", rounds=1)
        next(other.glob("anchor-*")).replace(next(tmp_path.glob("anchor-*")))
    else:
        harm(next(tmp_path.glob("anchor-*")), how)
    for i in range(3):
        assert exchange(server, "c", ClientSession(tmp_path), noisy(3 + i), lambda x: x) is not None
    assert server.n_resyncs <= 1


@pytest.mark.parametrize("protocol", SLOWLY_TOLD)
def test_no_damage_to_a_file_raises(protocol: str, tmp_path: Path) -> None:
    """Every kind of damage, wherever it strikes: the client comes up, with this state, with the other one, or with none."""
    server, _ = started(tmp_path, protocol=protocol)
    rng, whole = random.Random(0), {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    holding = ClientSession(tmp_path).state
    assert holding is not None
    assert holding.base is not None
    good = {None, holding.now.digest(holding.terms), holding.base.digest(holding.terms)}
    for _ in range(400):
        name = rng.choice(sorted(whole))
        data = bytearray(whole[name])
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (tmp_path / name).write_bytes(data if rng.random() < 0.8 else data[: rng.randrange(len(data))])
        assert ClientSession(tmp_path).digest in good
        (tmp_path / name).write_bytes(whole[name])
    exchange(server, "c", ClientSession(tmp_path), noisy(9), lambda x: x)
    assert server.n_resyncs == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        '{"objects":[],"root":{"tuple":[1,2,3]}}',
        '{"objects":[["Held",{"sequence":"x","version":1,"point":1,"exact":1,"up":1,"down":1}]],"root":{"object":0}}',
        '{"objects":[["Direct",{"plan":{"codec":"topk(((((("}}]],"root":{"object":0}}',
        '{"objects":[["Direct",{"plan":{"codec":7}}]],"root":{"object":0}}',
        '{"objects":[["Popen",{}]],"root":{"object":0}}',
        '{"objects":[],"root":{"array":"a99"}}',
        '{"objects":[],"root":{"float":"x"}}',
    ],
)
def test_a_file_with_strange_text_is_no_state(text: str, tmp_path: Path) -> None:
    started(tmp_path)
    for name in STATES:
        rewrite(tmp_path / name, text.encode())
    assert ClientSession(tmp_path).digest is None


def rewrite(path: Path, text: bytes) -> None:
    """Other text in a state file, all checksums of the archive good."""
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            if member != "json.npy":
                archive.writestr(member, data)
        with archive.open("json.npy", "w") as file:
            np.lib.format.write_array(file, np.frombuffer(text, np.uint8))


@pytest.mark.parametrize("protocol", SLOWLY_TOLD)
def test_no_damage_behind_good_checksums_raises(protocol: str, tmp_path: Path) -> None:
    """Text whose every value may have become another one: the client comes up, and what it cannot use a resync replaces."""
    started(tmp_path, protocol=protocol, rounds=1)
    rng, whole = (
        random.Random(0),
        {name: (tmp_path / name).read_bytes() for name in STATES if (tmp_path / name).exists()},
    )
    for turn in range(300):
        for name, data in whole.items():
            (tmp_path / name).write_bytes(data)
            with zipfile.ZipFile(tmp_path / name) as archive, archive.open("json.npy") as file:
                text = bytearray(np.lib.format.read_array(file).tobytes())
            for _ in range(rng.randint(1, 3)):
                at, length = rng.randrange(len(text)), rng.choice((0, 1, 1, 2, 8))
                text[at : at + length] = rng.choice(
                    (b"", b"0", b"9" * 30, b'"', b"null", b"-1", b"[", b"{}", b"1e999", rng.randbytes(1))
                )
            rewrite(tmp_path / name, bytes(text))
        client = ClientSession(tmp_path)
        if turn % 20 == 0:  # and it goes on from there
            server = ServerSession(protocol_of(protocol), seed=turn)
            exchange(server, "c", client, noisy(turn), lambda x: x)
            assert client.digest == server.digest("c")


def test_an_unwritable_folder_leaves_the_client_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    server, client = ServerSession(protocol_of("mcm"), seed=0), ClientSession(tmp_path / "file" / "own")
    client.receive(server.send("c", model()))
    with pytest.raises(perbit.PerbitError, match="cannot write"):
        client.reply(model(1))
    assert client.digest is None is server.digest("c")

    server, client = started(tmp_path / "own")
    before = client.digest
    for name in STATES:
        (tmp_path / "own" / name).unlink()
        (tmp_path / "own" / name).mkdir()  # nothing can be put in its place
    client.receive(server.send("c", noisy(8)))
    with pytest.raises(perbit.PerbitError):
        client.reply(noisy(8))
    assert client.digest == before == server.digest("c")


def test_what_a_killed_writer_left_is_removed_and_what_others_keep_stays(tmp_path: Path) -> None:
    started(tmp_path, protocol="federated")
    for name in (".state-0.npz.abcd", ".anchor-00.npz.x", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    ClientSession(tmp_path)
    anchor, *others = sorted(path.name for path in tmp_path.iterdir())
    assert anchor.startswith("anchor-")
    assert others == ["notes.txt", *STATES]
    (tmp_path / ".state-1.npz.efgh").write_bytes(b"x")
    ClientFiles(tmp_path).remove()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "notes.txt").unlink()
    ClientFiles(tmp_path).remove()
    assert not tmp_path.exists()
    ClientFiles(tmp_path).remove()  # nothing is there any more


# --- restarts, replays and damage -----------------------------------------------------------------------------------------


def test_a_restarted_server_starts_over() -> None:
    _, client = started()
    server = ServerSession(protocol_of("mcm"), seed=0)
    exchange(server, "c", client, noisy(4), lambda x: x)
    assert server.digest("c") == client.digest


@pytest.mark.parametrize("protocol", ["mcm", "federated", "rand_mcm"])
def test_a_server_that_goes_on_from_an_older_state_finds_its_clients_again(protocol: str, tmp_path: Path) -> None:
    """Its numbers were used before; the clients that are ahead of it take its full frame nevertheless, once."""
    server, client = started(protocol=protocol)
    save(tmp_path / "server.npz", server.state)
    for i in range(5):
        exchange(server, "c", client, noisy(10 + i), lambda x: x)
    server = ServerSession(protocol_of(protocol))
    server.state = restore(tmp_path / "server.npz", STATE_TYPES)
    for i in range(3):
        exchange(server, "c", client, noisy(20 + i), lambda x: x)
    assert server.n_resyncs == 1


def test_an_old_full_frame_is_refused() -> None:
    server, client = ServerSession(protocol_of(), seed=0), ClientSession()
    full = server.send("c", model(1))
    client.receive(full)
    server.receive("c", client.reply())
    with pytest.raises(ResyncNeeded, match="old one") as needed:
        client.receive(full)
    with pytest.raises(StaleAnswer):  # that frame came twice: no reason to send everything again
        server.receive("c", needed.value.answer)
    assert kind(server.send("c", model(2))) == "DELTA"
    exchange(server, "c", client, model(2), None)


def test_a_request_for_a_resync_counts_once() -> None:
    server, client = started()
    request = ask_for_resync(server.send("c", noisy(7)), "lost it")
    with pytest.raises(ResyncNeeded):
        server.receive("c", request)
    client.receive(server.resync("c"))
    with pytest.raises(StaleAnswer):  # while the full frame waits for its answer
        server.receive("c", request)
    server.receive("c", client.reply())
    with pytest.raises(StaleAnswer):  # and afterwards
        server.receive("c", request)
    assert server.digest("c") == client.digest
    unread = enclose(Kind.RESYNC, 0, bytes(8), b"no frame at all")  # from a client that cannot say which frame
    with pytest.raises(ResyncNeeded):
        server.receive("c", unread)


def test_damaged_answers_raise_decode_error_and_leave_the_others_alone() -> None:
    server, client = started()
    other = ClientSession()
    exchange(server, "other", other, noisy(3), None)
    client.receive(server.send("c", noisy(3)))
    answer = bytearray(client.reply(noisy(4)))
    answer[len(answer) // 2] ^= 4
    with pytest.raises(perbit.DecodeError, match="checksum"):
        server.receive("c", bytes(answer))
    assert server.digest("other") == other.digest
    got = exchange(server, "c", client, noisy(5), lambda x: x)  # as if the answer had been lost
    assert server.n_resyncs == 0
    assert got is not None
    assert server.digest("c") == client.digest


@EACH_PRESET
def test_a_result_that_is_dropped_has_not_happened(name: str) -> None:
    server, client = session(small(name)), ClientSession()
    for i in range(2):
        exchange(server, "c", client, noisy(i), lambda x: trained(x, np.random.default_rng(0)))
    before = client.digest
    frame = server.send("c", noisy(8))
    client.receive(frame)  # training fails: no reply
    assert client.digest == before == server.digest("c")
    exchange(server, "c", client, noisy(9), lambda x: x)
    assert server.n_resyncs == 0
    with pytest.raises(perbit.EncodeError, match="no frame to answer"):
        client.reply()


def test_the_server_forgets_whom_it_has_not_heard_of_for_longest() -> None:
    server, clients = ServerSession(protocol_of(), max_clients=2), [ClientSession() for _ in range(3)]
    for who, client in enumerate(clients):
        client.receive(server.send(who, {"w": np.ones(4, np.float32)}))
        server.receive(who, client.reply())
    assert [server.digest(who) is None for who in range(3)] == [True, False, False]
    clients[0].receive(server.send(0, {"w": np.ones(4, np.float32)}))  # a full frame
    server.receive(0, clients[0].reply())
    assert server.digest(0) == clients[0].digest


# --- strange messages -------------------------------------------------------------------------------------------------


@given(data=st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_by_both_sides(data: bytes) -> None:
    with pytest.raises(perbit.DecodeError):
        ServerSession(protocol_of()).receive("c", data)
    with pytest.raises(ResyncNeeded):
        ClientSession().receive(data)


def test_clients_send_nothing_but_answers() -> None:
    server, client = started()
    stray = ServerSession(protocol_of()).send("c", model())
    server.send("c", noisy(5))
    with pytest.raises(perbit.DecodeError, match="no frame of kind FULL"):
        server.receive("c", stray)
    with pytest.raises(StaleAnswer, match="nothing was waited for"):
        server.receive("c", client_ack(client))
    with pytest.raises(perbit.EncodeError, match="nothing was sent"):
        ServerSession(protocol_of()).resync("nobody")


def client_ack(client: ClientSession) -> bytes:
    client.receive(ServerSession(protocol_of()).send("x", model()))
    return client.reply()


def test_an_answer_to_a_message_that_was_never_sent_is_refused() -> None:
    server, _ = started()
    server.send("c", noisy(5))
    with pytest.raises(perbit.StateMismatch, match="needs a resync") as refused:
        server.receive("c", enclose(Kind.ACK, 99, bytes(8)))
    assert not isinstance(refused.value, StaleAnswer)
    assert server.digest("c") is None


def test_a_client_cannot_flood_the_log() -> None:
    server = ServerSession(protocol_of())
    server.send("a", {"w": np.ones(4, np.float32)})
    with pytest.raises(ResyncNeeded) as caught:
        server.receive("a", enclose(Kind.RESYNC, 1, bytes(8), b"x\nforged" * 5_000))
    assert len(str(caught.value)) < 2000
    assert "\n" not in str(caught.value)


# --- any story ----------------------------------------------------------------------------------------------------------

EVENTS = [
    "fine", "evaluate", "partial", "no frame", "no answer", "old frame", "old answer", "bent frame", "bent answer", "new client",
    "no files", "one file", "new server", "older server", "forget", "give up",
]  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["mcm", "fedavg_topk_ef", "diana", "dore", "rand_mcm", "federated", "rand_mcm_averaged"]),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1), st.integers(0, 99)), max_size=16),
)
def test_whatever_happens_the_next_exchange_heals_it(name: str, events: list[tuple[str, int, int]]) -> None:
    with TemporaryDirectory() as folder:
        protocol = protocol_of(name, keep=2) if name == "federated" else small(name)
        story = Story(protocol, Path(folder))
        for round_, (event, who, which) in enumerate(events):
            story.tell(event, who, which, noisy(round_, round_))
        for who in (0, 1):
            got = exchange(story.server, str(who), story.client(who), noisy(3, 77), lambda x: x)
            assert got is not None
            assert got["steps"] == 77


class Story:
    """Two clients in files, a server, and every frame ever sent."""

    def __init__(self, protocol: Protocol, folder: Path) -> None:
        self.protocol, self.folder = protocol, folder
        self.server = session(protocol)
        self.clients: dict[int, ClientSession] = {}
        self.down: list[bytes] = []
        self.up: list[bytes] = []
        self.states: list[Any] = []

    def client(self, who: int) -> ClientSession:
        if who not in self.clients:
            self.clients[who] = ClientSession(self.folder / str(who))
        return self.clients[who]

    def tell(self, event: str, who: int, which: int, tensors: dict[str, Any]) -> None:
        self.prepare(event, who, which)
        frame = self.server.send(str(who), tensors)
        self.states.append(self.server.state)
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
            part = {"w": received["w"]} if event == "partial" else received
            answer = self.client(who).reply(None if event == "evaluate" else part)
        self.up.append(answer)
        if event == "no answer":
            return
        if event == "old answer":
            answer = self.up[which % len(self.up)]
        self.take(who, bent(answer, which) if event == "bent answer" else answer)

    def prepare(self, event: str, who: int, which: int) -> None:
        if event == "new server":
            self.server = session(self.protocol)
        if event == "older server" and self.states:
            self.server = session(self.protocol)
            self.server.state = self.states[which % len(self.states)]
        if event == "forget":
            self.server.forget(str(who))
        if event == "give up":
            self.server.forget_pending(str(who))
        if event in ("new client", "no files", "one file"):
            self.clients.pop(who, None)
        files = sorted((self.folder / str(who)).glob("*"))
        for path in {"no files": files, "one file": files[which % max(1, len(files)) :][:1]}.get(event, []):
            path.unlink()

    def take(self, who: int, answer: bytes) -> None:
        before = self.server.digest(str(who))
        try:
            self.server.receive(str(who), answer)
        except (StaleAnswer, TooManyResyncs):
            assert self.server.digest(str(who)) == before
        except perbit.StateMismatch:
            assert self.server.digest(str(who)) is None
        except perbit.DecodeError:  # as good as lost
            assert self.server.digest(str(who)) == before
        else:
            assert self.server.digest(str(who)) == self.client(who).digest


def bent(frame: bytes, which: int) -> bytes:
    at = which * len(frame) // 100
    return frame[:at] + bytes([frame[at] ^ 0x10]) + frame[at + 1 :]


def test_the_reader_of_files_says_what_is_wrong(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", (1, 2), "mine")
    with pytest.raises(perbit.files.FileError, match="another run"):
        restore(tmp_path / "a.npz", (), "yours")
    with pytest.raises(perbit.files.FileError, match="cannot read"):
        restore(tmp_path / "b.npz", ())
    assert packing.restore(tmp_path / "a.npz", (), "mine") == (1, 2)


def test_a_lost_answer_to_a_full_model_costs_nothing_even_after_a_restart(tmp_path: Path) -> None:
    """The state before has an anchor of its own; its file stays as long as that state does."""
    server, client = ServerSession(protocol_of(keep=2), 0), ClientSession(tmp_path / "own")
    exchange(server, "a", client, noisy(0), None)
    for i in range(4):
        exchange(server, f"other {i}", ClientSession(), noisy(1 + i), None)  # push its reference out of the table
    client.receive(server.send("a", noisy(9)))
    client.reply()  # which nobody gets
    again = ClientSession(tmp_path / "own")
    again.receive(server.send("a", noisy(10)))
    server.receive("a", again.reply())
    assert server.digest("a") == again.digest
    assert server.n_resyncs == 0


def test_a_session_with_memories_on_disk_has_no_state_to_give(tmp_path: Path) -> None:
    server = ServerSession(replace(protocol_of("diana"), folder=str(tmp_path)), 0)
    server.publish(noisy(0))
    with pytest.raises(FileError, match="in a folder"):
        _ = server.state
