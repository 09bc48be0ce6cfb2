"""Sessions as values: saved and restored at any moment, they go on bit for bit as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.channels.packing import restore, save
from perbit.protocols import presets
from perbit.session import ClientSession, ServerSession, protocol_of
from perbit.session.held import Held, Holding
from perbit.session.server import STATE_TYPES
from session_exchange import EACH_PRESET, exchange, is_same, kind, noisy, session, small, trained

PRESENT = [[0, 1, 2, 3], [0, 2], [1, 2], [0, 1, 3], [2, 3], [0, 1, 2, 3], [1, 2], [0, 3]]


class Run:
    """A server and four clients, the same for the same history."""

    def __init__(self, name: str) -> None:
        self.server, self.clients = session(small(name)), [ClientSession() for _ in range(4)]
        self.said: list[Any] = []

    def round(self, number: int, steps: bool) -> None:
        for i in PRESENT[number]:
            tensors = None if steps and number else noisy(number, number)
            frame = self.server.send(i, tensors)
            received = self.clients[i].receive(frame)
            if (i + number) % 4 == 3:
                answer = self.clients[i].reply()
            else:
                part = trained(received, np.random.default_rng([i, number]))
                part = {"w": part["w"], "steps": part["steps"]} if i == 2 and number > 1 else part
                answer = self.clients[i].reply(part)
            self.said += [received, frame if kind(frame) != "FULL" else b"", answer, self.server.receive(i, answer)]
            assert self.server.digest(i) == self.clients[i].digest
        if steps:
            self.server.step(0.5, {"steps": np.array(number)})

    def saved_to(self, path: Path) -> Run:
        """Another run that goes on from here."""
        save(path, (self.server.state, tuple(client.state for client in self.clients)))
        state, held = restore(path, (Held, Holding, *STATE_TYPES))
        other = Run(self.server.protocol.name)
        other.server.state = state
        for client, holding in zip(other.clients, held, strict=True):
            client.state = holding
        return other


@EACH_PRESET
@pytest.mark.parametrize("steps", [False, True], ids=["strategy", "protocol"])
def test_a_restored_run_goes_on_bit_for_bit(name: str, steps: bool, tmp_path: Path) -> None:
    run = Run(name)
    for number in range(4):
        run.round(number, steps)
    other = run.saved_to(tmp_path / "run.npz")
    run.said.clear()
    for number in range(4, 8):
        run.round(number, steps)
        other.round(number, steps)
    assert run.server.flat.tobytes() == other.server.flat.tobytes()
    assert is_same(run.server.tensors, other.server.tensors)
    assert len(run.said) == len(other.said) > 30
    for mine, theirs in zip(run.said, other.said, strict=True):
        assert is_same(mine, theirs) if isinstance(mine, dict) and isinstance(theirs, dict) else mine == theirs
    for mine_client, their_client in zip(run.clients, other.clients, strict=True):
        assert mine_client.digest == their_client.digest


@EACH_PRESET
def test_a_state_is_a_value(name: str) -> None:
    """What happens to a session afterwards is not seen in a state taken before, nor in what was made of it."""
    run = Run(name)
    for number in range(3):
        run.round(number, steps=False)
    state, held = run.server.state, [client.state for client in run.clients]
    results = []
    for _ in range(2):
        other = Run(name)
        other.server.state = state
        for client, holding in zip(other.clients, held, strict=True):
            client.state = holding
        for number in range(3, 6):
            run.round(number, steps=False)
            other.round(number, steps=False)
        results.append([said for said in other.said if isinstance(said, dict)])
        run = Run(name)
        run.server.state = state
        for client, holding in zip(run.clients, held, strict=True):
            client.state = holding
    assert all(is_same(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["federated", "mcm", "rand_mcm", "double_squeeze"])
def test_what_was_under_way_is_as_if_it_had_been_lost(name: str) -> None:
    server, client = session(small(name)), ClientSession()
    for i in range(3):
        exchange(server, 0, client, noisy(i), lambda x: trained(x, np.random.default_rng(0)))
    answer = client.reply(client.receive(server.send(0, noisy(3))))
    state = server.state
    again = session(small(name))
    again.state = state
    with pytest.raises(perbit.DecodeError, match="nothing was waited for"):
        again.receive(0, answer)
    exchange(again, 0, client, noisy(4), lambda x: x)
    assert again.n_resyncs == 0
    assert server.receive(0, answer) is not None  # the other one still waits for it


def test_a_restored_table_holds_no_reference_for_messages_under_way() -> None:
    server, client = ServerSession(presets.federated(), 0), ClientSession()
    exchange(server, 0, client, noisy(0), None)
    for i in range(1, 4):
        server.send(0, noisy(i))
        again = ServerSession(presets.federated(), 0)
        again.state = server.state
        server = again
    users = {name: found.users for name, found in server._server.downlink.table.items()}
    assert sum(users.values()) == 2  # the one client, at its anchor
    server.forget(0)
    server.publish(noisy(9))
    assert server._server.downlink.table == {}


def test_a_session_without_a_model_has_no_state() -> None:
    with pytest.raises(perbit.EncodeError, match="no model yet"):
        ServerSession(protocol_of()).state  # noqa: B018
    assert ClientSession().state is None
    assert ClientSession().digest is None


def test_memories_in_files_of_their_own_are_not_saved_elsewhere(tmp_path: Path) -> None:
    server, client = ServerSession(presets.rand_mcm(folder=str(tmp_path / "rows")), 0), ClientSession()
    exchange(server, 0, client, noisy(0), lambda x: x)
    with pytest.raises(perbit.files.FileError, match="in a folder"):
        save(tmp_path / "state.npz", server.state)
    assert not (tmp_path / "state.npz").exists()


def test_the_first_frame_is_not_kept_for_ever() -> None:
    server = ServerSession(protocol_of(), 0)
    server.publish(noisy(0))
    assert len(server.state.first) > 4 * 1200
    server.publish(noisy(1))
    assert server.state.first == b""
    got = ClientSession().receive(server.send(0))
    assert np.array_equal(got["w"], noisy(1)["w"])
