"""Sessions: any protocol between a server and clients that come and go, whatever is lost, repeated, damaged or restarted."""

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
from perbit.channels import Channel, Direct, ErrorFeedback, Shifted
from perbit.protocol import Protocol
from perbit.session import ClientSession, Model, ResyncNeeded, ServerSession, protocol_of
from perbit.session.envelope import Kind, seal
from perbit.session.wiring import Wiring

SENDABLE = [name for name in presets.PRESETS if name != "ghost"]
EACH_PRESET = pytest.mark.parametrize("name", SENDABLE)


def small(name: str) -> Protocol:
    more = {"warmup_rounds": 2, "up": "topk(0.3)"} if name == "deep_gradient_compression" else {}
    return presets.PRESETS[name].make(**more)


def model(value: float = 0.0, steps: int = 0) -> dict[str, Any]:
    return {
        "w": np.full((20, 30), value, np.float32),
        "b": np.full(5, -value, np.float64),
        "steps": np.array(steps, np.int64),
        "mask": np.array([True, False, True]),
    }


def trained(tensors: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A step towards ones, with noise; the counter counts."""
    moved = {
        name: (x + 0.3 * (1 - x) + 0.01 * rng.normal(size=x.shape)).astype(x.dtype)
        for name, x in tensors.items()
        if x.dtype.kind == "f"
    }
    return {**tensors, **moved, "steps": tensors["steps"] + 1}


def exchange(server: ServerSession, name: str, client: ClientSession, tensors: Any, step: Any) -> dict[str, Any] | None:
    """One message and its answer, with a resync if the client asks for it."""
    frame = server.send(name, tensors)
    try:
        received = client.receive(frame)
    except ResyncNeeded as needed:
        with pytest.raises(ResyncNeeded, match="asks for a resync"):
            server.receive(name, needed.answer)
        received = client.receive(server.resync(name))
    answer = client.reply(None if step is None else step(received))
    got = server.receive(name, answer)
    assert server.digest(name) == client.digest
    return got


def average(replies: list[dict[str, Any]]) -> dict[str, Any]:
    mean = {name: np.mean([r[name] for r in replies], axis=0) for name in ("w", "b")}
    return {"w": mean["w"].astype(np.float32), "b": mean["b"], **{n: replies[0][n] for n in ("steps", "mask")}}


# --- every protocol -----------------------------------------------------------------------------------------------------


def train(protocol: Protocol, rounds: int) -> dict[str, Any]:
    """Four clients, of which some take part in each round; the counter and the dtypes are exact all the way."""
    rng = np.random.default_rng(0)
    server, clients = ServerSession(protocol, seed=1), {f"c{i}": ClientSession(seed=i) for i in range(4)}
    current = model()
    for round_ in range(rounds):
        present = [c for c in clients if rng.random() < 0.6] or ["c0"]
        replies = [exchange(server, c, clients[c], current, lambda x: trained(x, rng)) for c in present]
        assert all(r is not None and r["steps"] == round_ + 1 and r["steps"].dtype == np.int64 for r in replies)
        current = average([r for r in replies if r is not None])
        assert current["b"].dtype == np.float64
        assert current["mask"].tolist() == [True, False, True]
    assert server.n_resyncs == 0
    return current


@EACH_PRESET
def test_every_preset_runs_with_clients_that_come_and_go(name: str) -> None:
    train(small(name), 12)


@pytest.mark.parametrize("name", sorted(set(SENDABLE) - {"model_compression", "update_compression", "sgd"}))
def test_training_converges_with_codecs_that_are_fine_enough(name: str) -> None:
    """Also with downlink memories of clients that were away; the two that are left out fail on purpose."""
    codecs = {"up": "topk(0.5)", "momentum": 0.1} if name == "deep_gradient_compression" else {"up": "qsgd(63) | rans"}
    if presets.PRESETS[name].two_way:
        codecs["down"] = "qsgd(63) | rans"
    current = train(presets.PRESETS[name].make(**codecs), 25)
    assert np.abs(current["w"] - 1).mean() < 0.1
    assert np.abs(current["b"] - 1).mean() < 0.1


def test_raw_codecs_change_nothing() -> None:
    """What the server gets is what the client trained, to the last bit that float32 sums keep."""
    rng = np.random.default_rng(0)
    server, client = ServerSession(presets.fedavg(), seed=0), ClientSession(seed=0)
    for step in range(3):
        sent = model(step / 3, step)
        seen: dict[str, Any] = {}

        def remember(x: dict[str, Any], seen: dict[str, Any] = seen) -> dict[str, Any]:
            seen |= {"before": x, "after": trained(x, rng)}
            return dict(seen["after"])

        got = exchange(server, "c", client, sent, remember)
        assert got is not None
        for name, x in sent.items():
            assert np.array_equal(seen["before"][name], x.astype(np.float32) if name == "b" else x)
            assert np.allclose(got[name], seen["after"][name], rtol=1e-6, atol=1e-6)
            assert got[name].dtype == x.dtype


def test_mcm_adds_the_update_to_the_exact_model_and_double_squeeze_to_what_the_client_held() -> None:
    for name, exact in (("mcm", True), ("double_squeeze", False)):
        server, client = ServerSession(protocol_of(name, up="raw", down="topk(k=1)"), seed=0), ClientSession(seed=0)
        exchange(server, "c", client, {"w": np.zeros(4, np.float32)}, None)
        target = np.array([3, 2, 1, 0], np.float32)
        got = exchange(server, "c", client, {"w": target}, lambda x: {"w": x["w"] + 1})
        assert got is not None
        assert got["w"].tolist() == ((target + 1).tolist() if exact else [4, 1, 1, 1])


def test_frames_are_small() -> None:
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=(300, 400)).astype(np.float32), "steps": np.array(3)}
    server, client = ServerSession(protocol_of(), seed=0), ClientSession(seed=0)
    full = server.send("c", start)
    assert len(full) > 4 * 120_000
    moved = {**client.receive(full), "steps": np.array(4)}
    moved["w"] = moved["w"] + rng.normal(size=(300, 400)).astype(np.float32) / 100
    answer = client.reply(moved)
    assert len(answer) < 4 * 120_000 / 40
    server.receive("c", answer)
    assert len(server.send("c", moved)) < 4 * 120_000 / 5
    unchanged = server.send("c", start)
    assert len(unchanged) < 24
    assert np.array_equal(client.receive(unchanged)["w"], start["w"])
    assert len(client.reply()) < 24


def test_clients_in_step_get_the_same_coded_frame_and_rand_mcm_draws_for_each() -> None:
    for name, distinct in (("mcm", 1), ("rand_mcm", 3)):
        server, clients = ServerSession(presets.PRESETS[name].make(), seed=0), [ClientSession() for _ in range(3)]
        for i, client in enumerate(clients):
            exchange(server, f"c{i}", client, model(0), None)
        for i, client in enumerate(clients):
            exchange(server, f"c{i}", client, model(1), None)
        held = [client.receive(server.send(f"c{i}", model(1)))["w"].tobytes() for i, client in enumerate(clients)]
        assert len(set(held)) == distinct
        assert (
            len({id(known.end.down) for known in server._confirmed.values()}) == distinct
        )  # memories, too, are shared


def test_a_model_that_changes_its_tensors_is_sent_in_full() -> None:
    server, client = ServerSession(protocol_of(), seed=0), ClientSession()
    exchange(server, "c", client, model(1), None)
    other = {"v": np.arange(7, dtype=np.float32)}
    assert np.array_equal(client.receive(server.send("c", other))["v"], other["v"])
    with pytest.raises(perbit.EncodeError, match="same names"):
        client.reply({"v": np.zeros(8, np.float32)})
    assert server.receive("c", client.reply(other)) is not None


def test_counters_stay_exact_when_averaging_makes_floats_of_them() -> None:
    """As FedAvg does: an int64 counter comes back as float64. That is no reason to send everything, or to round."""
    server, client = ServerSession(protocol_of(), seed=0), ClientSession()
    exchange(server, "c", client, {"w": np.ones(9, np.float32), "n": np.array(2**60 + 1)}, None)
    wide = np.array(123456789.5)  # not a float32
    got = exchange(server, "c", client, {"w": np.ones(9, np.float32), "n": wide}, lambda x: {**x, "n": x["n"] + 1})
    assert got is not None
    assert got["n"] == wide + 1
    late = ClientSession()
    assert late.receive(server.send("late", {"w": np.ones(9, np.float32), "n": wide}))["n"] == wide
    whole = exchange(server, "c", client, {"w": np.ones(9, np.float32), "n": wide}, lambda x: {**x, "n": np.array(7)})
    assert whole is not None
    assert whole["n"].dtype == np.int64
    assert server.n_resyncs == 0


@pytest.mark.parametrize("tensors", [{}, {"n": np.array(3)}, {"w": np.zeros((0, 4), np.float32)}])
def test_models_without_floats(tensors: dict[str, Any]) -> None:
    server, client = ServerSession(protocol_of(), seed=0), ClientSession()
    for _ in range(2):
        got = exchange(server, "c", client, tensors, lambda x: x)
        assert got is not None
        assert {name: x.tolist() for name, x in got.items()} == {name: x.tolist() for name, x in tensors.items()}


# --- what may go wrong --------------------------------------------------------------------------------------------------


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


# --- which protocols, and how clients learn of them -------------------------------------------------------------------


@EACH_PRESET
def test_channels_are_described_and_built_again(name: str) -> None:
    wiring = Wiring.of(small(name))
    built = Wiring.from_json(wiring.to_json())
    assert (built.up, built.down) == (wiring.up, wiring.down)


def test_a_budget_holds_for_every_update() -> None:
    protocol = protocol_of("ef21", up=perbit.BudgetPlan.of("topk(?) | fp16", n_bits=8000))
    server, client = ServerSession(protocol, 0), ClientSession(seed=0)
    model = {"w": np.zeros((100, 100), np.float32)}
    for number in range(3):
        held = client.receive(server.send("a", model))
        noise = np.random.default_rng(number).laplace(size=(100, 100)).astype(np.float32)
        answer = client.reply({"w": held["w"] + noise})
        assert 950 <= len(answer) <= 1000 + 32  # the session's own head
        model = server.receive("a", answer) or {}


def test_random_codecs_keep_to_their_budget_too() -> None:
    channel = Direct(perbit.BudgetPlan.of("topk(?) | qsgd(1) | rans", n_bits=8000))
    state, _ = channel.init(10_000)
    for seed in range(30):
        assert len(channel.send(np.random.default_rng(seed).laplace(size=10_000), state, seed).frame) <= 1000


def test_a_biased_rule_gets_error_feedback() -> None:
    plan = perbit.Plan.of("qsgd(7) | rans", rules={"w*": "topk(0.1) | fp16"})
    assert isinstance(protocol_of(up=plan).uplink, ErrorFeedback)
    assert isinstance(protocol_of(up="qsgd(7) | rans").uplink, Direct)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    others, ours = ["data.npz", "notes.txt"], ["1-2.npz", ".1-3.npz.abcd"]
    for name in others + ours:
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (0, 0))
    server, client = ServerSession(protocol_of()), ClientSession(tmp_path / "7-8.npz")
    client.receive(server.send("a", {"w": np.ones(4, np.float32)}))
    client.reply()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "7-8.npz"])


def test_a_client_cannot_flood_the_log() -> None:
    server = ServerSession(protocol_of())
    server.send("a", {"w": np.ones(4, np.float32)})
    with pytest.raises(ResyncNeeded) as caught:
        server.receive("a", seal(Kind.RESYNC, 1, bytes(8), b"x\nforged" * 100_000))
    assert len(str(caught.value)) < 2000
    assert "\n" not in str(caught.value)


def test_minus_zero_and_new_dtypes_arrive() -> None:
    server, client = ServerSession(protocol_of()), ClientSession()
    models = [
        {"w": np.ones(4, np.float16), "n": np.array(0)},
        {"w": np.ones(4, np.float16), "n": np.array(0.0)},
        {"w": np.ones(4, np.float16), "n": np.array(-0.0)},
        {"w": np.full(4, 1e5, np.float32), "n": np.array(-0.0)},
    ]
    for model in models:
        got = client.receive(server.send("a", model))
        server.receive("a", client.reply())
        assert got["n"].tobytes() == model["n"].tobytes()
    np.testing.assert_allclose(got["w"], 1e5)


def test_the_server_forgets_whom_it_has_not_heard_of_for_longest() -> None:
    server, clients = ServerSession(protocol_of(), max_clients=2), [ClientSession() for _ in range(3)]
    for who, client in enumerate(clients):
        client.receive(server.send(who, {"w": np.ones(4, np.float32)}))
        server.receive(who, client.reply())
    assert [server.digest(who) is None for who in range(3)] == [True, False, False]
    clients[0].receive(server.send(0, {"w": np.ones(4, np.float32)}))  # a full frame
    server.receive(0, clients[0].reply())
    assert server.digest(0) == clients[0].digest


@pytest.mark.parametrize("text", [b"", b"{}", b'{"up":1,"down":2}', b'{"up":{"is":"Popen"},"down":1}', b"[" * 9999])
def test_strange_descriptions_are_refused(text: bytes) -> None:
    with pytest.raises(perbit.DecodeError):
        Wiring.from_json(text)


def test_what_cannot_run_says_so() -> None:
    with pytest.raises(perbit.SpecError, match="ghost"):
        ServerSession(presets.ghost())
    with pytest.raises(perbit.SpecError, match="no preset 'mmc'"):
        protocol_of("mmc")
    with pytest.raises(perbit.SpecError, match="has its codecs already"):
        protocol_of(presets.mcm(), up="raw")

    class Own(Direct):
        pass

    unknown: Channel = Shifted(Own("raw"))
    with pytest.raises(perbit.EncodeError, match="Own"):
        ServerSession(Protocol.of("own", unknown, Direct("raw"))).send("c", model())


def test_models_are_values() -> None:
    tensors = model(1, 2)
    kept = Model.of(tensors)
    tensors["w"][:] = 9
    tensors["steps"][...] = 9
    assert kept.tensors()["w"].max() == 1
    assert kept.tensors()["steps"] == 2
    assert kept.same_as(Model.of(model(1, 2)))
    assert not kept.same_as(Model.of(model(1, 3)))
