"""A server that is killed at any moment and started again: nobody is sent a full model that did not need one before."""

from __future__ import annotations

import errno
import os
import pickle
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.files import FileError
from perbit.protocols import presets
from perbit.session import ClientSession, ResyncNeeded, ServerSession, StaleAnswer, TooManyResyncs, protocol_of
from perbit.session.envelope import ask_for_resync, opened
from perbit.session.serverstate import number_of, plain
from session_exchange import EACH_PRESET, exchange, is_same, kind, noisy, session, small, trained

HERE = Path(__file__).parent


class Process:
    """A server that lives behind two pipes."""

    def __init__(self, preset: str, folder: Path) -> None:
        command = [sys.executable, str(HERE / "server_to_kill.py"), preset, str(folder)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
        self.running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def hear(self) -> tuple[int, bytes]:
        assert self.running.stdout is not None
        (length,) = struct.unpack("<I", self.running.stdout.read(4))
        said: tuple[int, bytes] = pickle.loads(self.running.stdout.read(length))
        return said

    def say(self, answer: bytes | None) -> None:
        assert self.running.stdin is not None
        data = pickle.dumps(answer)
        self.running.stdin.write(struct.pack("<I", len(data)) + data)
        self.running.stdin.flush()

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()
        for pipe in (self.running.stdin, self.running.stdout):
            if pipe is not None:
                pipe.close()


@pytest.mark.parametrize("preset", ["federated", "mcm", "rand_mcm", "double_squeeze", "diana"])
def test_a_server_killed_at_any_moment_needs_no_full_model(preset: str, tmp_path: Path) -> None:
    """Each client is sent one full model, its first, whenever the server dies: before it sends, after, with an answer under way or
    half written down."""
    rng, clients, fulls = random.Random(preset), [ClientSession() for _ in range(4)], [0] * 4
    confirmed: set[int] = set()
    for _ in range(5):
        server = Process(preset, tmp_path)
        try:
            last = rng.randrange(1, 25)
            for step in range(last + 1):
                who, frame = server.hear()
                fulls[who] += kind(frame) == "FULL" and who in confirmed
                received = clients[who].receive(frame)  # ResyncNeeded would end the test
                answer = clients[who].reply(trained(received, np.random.default_rng()) if rng.random() < 0.7 else None)
                is_lost = rng.random() < 0.1
                server.say(None if is_lost else answer)
                confirmed |= set() if is_lost or step == last else {who}  # the last one may not have been read
        finally:
            server.kill()
    assert fulls == [0] * 4


def body_of(frame: bytes) -> bytes:
    """Without number and digest, which a restarted server has others of."""
    body = opened(frame).body
    return bytes(body.take(body.remaining, "body"))


def restarted(server: ServerSession, folder: Path, **more: Any) -> ServerSession:
    """What a new process finds: the files as they are, and no word from the old one."""
    server.close()
    return session(replaced(server), folder=folder, **more)


def replaced(server: ServerSession) -> Any:
    return small(server.protocol.name)


@EACH_PRESET
@pytest.mark.parametrize("steps", [False, True], ids=["strategy", "protocol"])
def test_a_restarted_server_goes_on_bit_for_bit(name: str, steps: bool, tmp_path: Path) -> None:
    """In the middle of rounds, with messages under way: the same as from one that was never ended, but for numbers and digests of frames."""
    one, two = session(small(name), folder=tmp_path / "one"), session(small(name), folder=tmp_path / "two")
    ends = [(one, [ClientSession() for _ in range(3)]), (two, [ClientSession() for _ in range(3)])]
    for round_ in range(5):
        for who in range(3):
            said = []
            for server, clients in ends:
                frame = server.send(who, None if steps and round_ else noisy(round_, round_))
                received = clients[who].receive(frame)
                answer = clients[who].reply(trained(received, np.random.default_rng([round_, who])))
                if (who, round_) not in ((1, 2), (0, 3)):
                    said.append(server.receive(who, answer))
                said.append(b"" if kind(frame) == "FULL" else body_of(frame))
            if (who + round_) % 2:
                ends[1] = restarted(ends[1][0], tmp_path / "two"), ends[1][1]
            half = len(said) // 2
            for mine, theirs in zip(said[:half], said[half:], strict=True):
                assert is_same(mine, theirs) if isinstance(mine, dict) else mine == theirs
        if steps:
            for server, _ in ends:
                server.step(lambda mean: -0.5 * mean, {"steps": np.array(round_)})
    assert ends[0][0].flat.tobytes() == ends[1][0].flat.tobytes()
    assert ends[1][0].n_resyncs == 0


def test_a_long_journal_becomes_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perbit.session.journal._SHORT", 1)
    server, client = ServerSession(presets.rand_mcm(), 0, folder=tmp_path), ClientSession()
    for round_ in range(40):
        exchange(server, 0, client, noisy(round_), lambda x: trained(x, np.random.default_rng(0)))
    names = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert names == ["journal", "lock", "rows", "rows", "server"]
    assert int(next(tmp_path.glob("server-*.npz")).stem.split("-")[1]) > 3
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o600"}
    server = restarted(server, tmp_path)
    exchange(server, 0, client, noisy(99), None)
    assert server.n_resyncs == 0


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.99])
def test_a_journal_that_was_cut_off_is_read_as_far_as_it_goes(share: float, tmp_path: Path) -> None:
    server, client = ServerSession(protocol_of("mcm"), 0, folder=tmp_path), ClientSession()
    for round_ in range(4):
        exchange(server, 0, client, noisy(round_), None)
    journal = next(tmp_path.glob("journal-*.log"))
    journal.write_bytes(journal.read_bytes()[: int(share * journal.stat().st_size)])
    server = restarted(server, tmp_path)
    exchange(server, 0, client, noisy(9), lambda x: x)  # by a resync, if the client is ahead by more than one answer


@pytest.mark.parametrize("preset", ["federated", "mcm"])
def test_state_is_private_whatever_the_umask(preset: str, tmp_path: Path) -> None:
    """It is a model, and what a client's data made of it."""
    before = os.umask(0)
    try:
        server, client = session(small(preset), folder=tmp_path / "server"), ClientSession(tmp_path / "client")
        rounds(server, [client], range(3))
        server.close()
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert len(modes) > 4
    assert {path.name: oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_damaged_files_end_in_a_resync(tmp_path: Path) -> None:
    server, client = ServerSession(protocol_of("mcm"), 0, folder=tmp_path), ClientSession()
    exchange(server, 0, client, noisy(0), None)
    exchange(server, 0, client, noisy(1), None)
    snapshot = next(tmp_path.glob("server-*.npz"))
    data = bytearray(snapshot.read_bytes())
    data[len(data) // 2] ^= 1
    snapshot.write_bytes(data)
    server = restarted(server, tmp_path)
    assert not server.has_model
    exchange(server, 0, client, noisy(2), lambda x: x)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    server = ServerSession(protocol_of(), folder=tmp_path)
    with pytest.raises(perbit.files.FileError, match="another process"):
        ServerSession(protocol_of(), folder=tmp_path)
    server.close()
    ServerSession(protocol_of(), folder=tmp_path).close()


def test_a_folder_of_another_protocol_is_no_use(tmp_path: Path) -> None:
    server = ServerSession(protocol_of("mcm"), 0, folder=tmp_path)
    server.publish(noisy(0))
    server.close()
    assert not ServerSession(protocol_of("diana"), 0, folder=tmp_path).has_model


def test_a_session_that_is_over_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_text("a user's")
    server = ServerSession(protocol_of("mcm"), 0, folder=tmp_path)
    server.publish(noisy(0))
    server.close(is_over=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.npz"]


def test_answers_to_the_process_before_are_taken(tmp_path: Path) -> None:
    server, client = ServerSession(protocol_of("mcm"), 0, folder=tmp_path), ClientSession()
    answer = client.reply(client.receive(server.send(0, noisy(0))))
    server = restarted(server, tmp_path)
    assert server.receive(0, answer) is not None
    with pytest.raises(perbit.StateMismatch):
        server.receive(0, answer)
    assert server.n_resyncs == 0
    with pytest.raises(ResyncNeeded):
        client.receive(b"")


# --- the journal itself --------------------------------------------------------------------------------------------------


def rounds(server: ServerSession, clients: list[ClientSession], numbers: range) -> None:
    for round_ in numbers:
        for who, client in enumerate(clients):
            exchange(server, who, client, noisy(round_), lambda x: trained(x, np.random.default_rng(0)))


def test_a_disk_that_was_full_for_a_moment_costs_that_call_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a record, and whatever came behind it could never be read again."""
    server, clients = ServerSession(small("federated"), 0, folder=tmp_path), [ClientSession() for _ in range(3)]
    rounds(server, clients, range(2))

    def full_disk(file: Any, data: bytes) -> None:
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("perbit.session.journal.write_all", full_disk)
        with pytest.raises(FileError, match="No space left"):
            server.publish(noisy(99))
    rounds(server, clients, range(2, 6))
    again = restarted(server, tmp_path)
    for who, client in enumerate(clients):
        assert again.digest(who) == client.digest
        assert kind(again.send(who)) != "FULL"


def test_a_journal_that_cannot_be_mended_takes_no_more_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerSession(small("federated"), 0, folder=tmp_path)
    server.publish(noisy(0))
    assert server._journal is not None
    monkeypatch.setattr("perbit.session.journal.write_all", broken)
    monkeypatch.setattr(server._journal, "_file", Unbending(server._journal._file))
    for match in ("Input/output", "start the server again"):
        with pytest.raises(FileError, match=match):
            server.send("a")


def broken(*_: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class Unbending:
    """A file that cannot be cut."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def truncate(self, size: int) -> None:
        broken()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_answers_that_change_nothing_take_no_room_on_disk(tmp_path: Path) -> None:
    server, client = ServerSession(small("federated"), 0, folder=tmp_path), ClientSession()
    client.receive(server.send("a", noisy(0)))
    answer = client.reply(trained(noisy(0), np.random.default_rng(0)))
    server.receive("a", answer)
    size = journal_bytes(tmp_path)
    for _ in range(20):
        with pytest.raises(StaleAnswer):
            server.receive("a", answer)
    assert journal_bytes(tmp_path) == size


def test_questions_beyond_what_a_client_may_ask_take_no_room_on_disk(tmp_path: Path) -> None:
    server = ServerSession(small("federated"), 0, folder=tmp_path, max_resyncs=2)
    server.publish(noisy(0))
    question = ask_for_resync(b"", "?")
    for _ in range(2):
        with pytest.raises(ResyncNeeded):
            server.receive("stranger", question)
    size = journal_bytes(tmp_path)
    for _ in range(20):
        with pytest.raises(TooManyResyncs):
            server.receive("stranger", question)
    assert journal_bytes(tmp_path) == size


def journal_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("journal-*.log"))


def test_a_call_that_cannot_be_made_again_does_not_stop_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = ServerSession(small("federated"), 0, folder=tmp_path), ClientSession()
    exchange(server, "a", client, noisy(0), None)
    server.close()
    with monkeypatch.context() as patch:
        patch.setattr(ServerSession, "_send", lambda *_: {}["a bug of another version"])
        again = ServerSession(small("federated"), 0, folder=tmp_path)
    assert not again.has_model
    assert kind(again.send("a", noisy(1))) == "FULL"


def test_a_very_large_model_becomes_a_snapshot_instead_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perbit.session.journal._LONGEST", 1000)
    server, clients = ServerSession(small("federated"), 0, folder=tmp_path), [ClientSession()]
    rounds(server, clients, range(3))
    again = restarted(server, tmp_path)
    assert again.digest(0) == clients[0].digest
    assert is_same(again.tensors, server.tensors)


def test_a_closed_session_takes_no_calls(tmp_path: Path) -> None:
    server = ServerSession(small("federated"), 0, folder=tmp_path)
    server.publish(noisy(0))
    server.close()
    with pytest.raises(FileError, match="was closed"):
        server.send("a")


@pytest.mark.parametrize("name", [np.int64(3), np.str_("three"), (np.int64(1), "x")], ids=repr)
def test_names_of_numpy_are_those_of_python_after_a_restart(name: Any, tmp_path: Path) -> None:
    """They are equal but look different: a call that is made again must draw as it did."""
    assert number_of(name) == number_of(plain(name))
    model, client = {"w": np.ones(2000, np.float32)}, ClientSession()
    protocol = presets.mcm("qsgd(7) | rans")
    server = ServerSession(protocol, seed=0, folder=tmp_path)
    for factor in (1, 2):
        client.receive(server.send(name, {"w": factor * model["w"]}))
        server.receive(name, client.reply({"w": (factor + 0.5) * model["w"]}))
    server.close()
    again = ServerSession(protocol, folder=tmp_path)
    assert again.digest(name) == again.digest(plain(name)) == client.digest
    client.receive(again.send(plain(name)))
