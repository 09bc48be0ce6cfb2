"""What a session takes from a stranger who knows how to make good frames: what was agreed, within bounds, and no more often than it may."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.frame import wire
from perbit.protocols import presets
from perbit.session import (
    ClientSession,
    ResyncNeeded,
    ServerSession,
    StaleAnswer,
    TooLarge,
    TooManyResyncs,
    protocol_of,
)
from perbit.session.envelope import Kind, ask_for_resync, enclose
from perbit.session.seal import ANYBODY, Seal, Way
from perbit.session.serverstate import number_of
from session_exchange import exchange, kind, noisy, session, small


def tensors(seed: int = 0) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).normal(size=(40, 50)).astype(np.float32), "n": np.array(3)}


def asked(server: ServerSession) -> ClientSession:
    client = ClientSession()
    exchange(server, "a", client, tensors(), None)
    client.receive(server.send("a", tensors(1)))
    return client


def forged(server: ServerSession, values: Any, spec: str, exact: bytes = b"") -> bytes:
    pending, uplink = server._pending["a"], server._average.uplinks.get("a")
    digest = server.protocol.uplink.digest(uplink)
    frame = perbit.dumps({"w": values}, perbit.Plan.of(spec, small=None), sequence=uplink.sequence, digest=digest)
    return enclose(Kind.UPDATE, pending.sequence, pending.digest, frame, exact, b"")


# --- what was agreed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        (np.ones((40, 50)), "topk(0.05) | fp16"),
        (np.ones((40, 50), np.float16), "topk(0.05) | fp16"),
        (np.ones((40, 50), np.float32), "topk(0.9) | fp16"),
        (np.ones((40, 50), np.float32), "topk(0.05) | qsgd(15) | rans"),
        (np.ones((40, 50), np.float32), "skcompress"),
        (np.ones((40, 50), np.float32), "raw"),
    ],
    ids=str,
)
def test_only_the_agreed_codecs_and_float32_are_taken(values: Any, spec: str) -> None:
    """And whoever sends something else stays where it was: the next message needs no full model."""
    server = ServerSession(protocol_of("federated", up="topk(0.05) | fp16"), 0)
    asked(server)
    with pytest.raises(perbit.DecodeError, match="agreed"):
        server.receive("a", forged(server, values, spec))
    assert kind(server.send("a", tensors(2))) == "DELTA"


@pytest.mark.parametrize("up", ["rd(bits=0.5)", perbit.Plan.of("topk(0.1) | fp16", whole_model=True)], ids=str)
def test_plans_that_look_at_values_may_choose_parameters_but_no_codecs(up: Any) -> None:
    server, client = ServerSession(protocol_of("federated", up=up), 0), ClientSession()
    for round_ in range(3):
        assert exchange(server, "a", client, tensors(round_), lambda x: {**x, "w": x["w"] + 1}) is not None
    client.receive(server.send("a", tensors(9)))
    with pytest.raises(perbit.DecodeError, match="agreed"):
        server.receive("a", forged(server, np.ones((40, 50), np.float32), "skcompress"))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint64", "float32", "float64", "bfloat16"])
def test_exact_tensors_come_back_in_their_dtype(dtype: str) -> None:
    server = ServerSession(protocol_of("federated", up="raw"), 0)
    asked(server)
    ml_dtypes = pytest.importorskip("ml_dtypes") if dtype == "bfloat16" else np
    exact = wire.write_raw({"n": np.array(1).astype(getattr(ml_dtypes, dtype, dtype))})
    with pytest.raises(perbit.DecodeError, match="agreed for exact tensors"):
        server.receive("a", forged(server, np.ones((40, 50), np.float32), "raw", exact))


def test_a_reset_in_float64_is_refused() -> None:
    channel = protocol_of("mcm").uplink
    _, receiver = channel.init(4)
    frame = wire.write_raw({"0": np.full(4, 1e300)}, sequence=3, digest=bytes(8))
    with pytest.raises(perbit.DecodeError, match="float32 was agreed"):
        channel.resync(frame, receiver)


def test_a_full_frame_by_costly_codecs_is_refused_at_once() -> None:
    """A hundred bytes that claim ten million values, in place of the first model."""
    server = ServerSession(protocol_of("mcm"), 0)
    server.publish({"w": np.zeros((1000, 10), np.float32)})
    terms = server._terms
    costly = perbit.dumps({"w": np.zeros((1000, 10), np.float32)}, perbit.Plan.of("skcompress", small=None))
    frame = enclose(Kind.FULL, 1, bytes(8), terms.to_bytes(), 0, 0, costly)
    with pytest.raises(ResyncNeeded, match="agreed"):
        ClientSession().receive(frame)


def test_an_answer_longer_than_any_is_refused_unread() -> None:
    server = ServerSession(protocol_of("mcm"), 0)
    asked(server)
    with pytest.raises(perbit.DecodeError, match="no answer about this model has more"):
        server.receive("a", bytes(1 << 20))


# --- stale answers, resyncs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["federated", "mcm", "diana", "rand_mcm"])
def test_replays_cost_nothing(preset: str) -> None:
    server, client, answers = session(small(preset)), ClientSession(), []
    for round_ in range(4):
        answers.append(client.reply(client.receive(server.send("a", noisy(round_)))))
        server.receive("a", answers[-1])
        for old in answers:
            with pytest.raises(StaleAnswer):
                server.receive("a", old)
        client.receive(server.send("a", noisy(50 + round_)))
        for old in answers:
            with pytest.raises(StaleAnswer):
                server.receive("a", old)
        server.receive("a", client.reply())
    assert server.n_resyncs == 0


def test_a_storm_of_resyncs_draws_three_models() -> None:
    """Fifty requests of 19 bytes drew two hundred megabytes."""
    server, model = ServerSession(protocol_of(), 0), {"w": np.ones((1000, 100), np.float32)}
    sent = len(server.send("a", model))
    outcomes: Counter[str] = Counter()
    for _ in range(50):
        try:
            server.receive("a", ask_for_resync(b"", "more"))
        except ResyncNeeded:
            sent += len(server.resync("a"))
            outcomes["sent"] += 1
        except TooManyResyncs:
            outcomes["refused"] += 1
        server.forget_pending("a")
    assert outcomes == {"sent": 3, "refused": 47}
    assert sent < 4 * 401_000
    for _ in range(50):  # as NVFlare asks: beside the answers
        server.send("a")
        try:
            server.resync("a")
            raise AssertionError("one more")
        except TooManyResyncs:
            pass
    client = ClientSession()  # with a new model there is help again, for it may be an honest one
    exchange(server, "a", client, {"w": np.zeros((1000, 100), np.float32)}, None)


def test_others_are_not_kept_waiting_by_a_storm() -> None:
    server, other = ServerSession(protocol_of("mcm"), 0), ClientSession()
    exchange(server, "b", other, tensors(), None)
    for _ in range(9):
        with pytest.raises(perbit.StateMismatch):
            server.receive("a", ask_for_resync(b"", "more"))
    assert exchange(server, "b", other, tensors(1), lambda x: x) is not None
    assert server.n_resyncs == 0


# --- norms --------------------------------------------------------------------------------------------------------------


def test_an_update_far_from_the_others_is_left_out_for_the_round() -> None:
    server = ServerSession(protocol_of("diana", up="raw"), 0, max_norm=10.0)
    clients = [ClientSession() for _ in range(5)]
    start = {"w": np.zeros((40, 50), np.float32)}
    for round_ in range(3):
        for who, client in enumerate(clients):
            scale = 1e4 if who == 4 else 1.0
            received = client.receive(server.send(who, start if round_ == 0 and who == 0 else None))
            answer = client.reply({"w": received["w"] + np.float32(scale)})
            if who == 4:
                with pytest.raises(TooLarge, match="more than 10 times the usual"):
                    server.receive(who, answer)
            else:
                server.receive(who, answer)
        server.step(1.0)
        np.testing.assert_allclose(server.tensors["w"], round_ + 1, rtol=1e-5)
    assert (server.n_too_large, server.n_resyncs) == (3, 0)
    exchange(server, 4, clients[4], None, lambda x: {"w": x["w"] + 1})  # it was dropped for the round, not for ever
    assert server.n_resyncs == 0


@pytest.mark.parametrize("most", [0.5, 1, float("nan"), float("inf"), -3])
def test_a_bound_that_is_none_is_refused(most: float) -> None:
    with pytest.raises(perbit.SpecError, match="above 1"):
        ServerSession(protocol_of(), max_norm=most)


# --- a key --------------------------------------------------------------------------------------------------------------

KEY, OTHER = b"k" * 32, b"o" * 32


def test_with_a_key_all_is_as_without() -> None:
    server, client = ServerSession(protocol_of("mcm"), 0, key=KEY), ClientSession(key=KEY)
    for round_ in range(3):
        assert exchange(server, "a", client, tensors(round_), lambda x: x) is not None
    client.state = None
    exchange(server, "a", client, tensors(9), lambda x: x)  # by a resync
    assert server.n_resyncs == 1


def test_frames_of_strangers_are_refused_and_change_nothing() -> None:
    server, client = ServerSession(protocol_of("mcm"), 0, key=KEY), ClientSession(key=KEY)
    exchange(server, "a", client, tensors(), None)
    frame = server.send("a", tensors(1))
    got = client.receive(frame)
    answer = client.reply({**got, "w": got["w"] + 1})
    inside = Seal(KEY).open(answer, Way.UP, number_of("a"))
    strange = {
        "no seal": inside,
        "another key": Seal(OTHER).close(inside, Way.UP, number_of("a")),
        "reflected": frame,
        "of another client": Seal(KEY).close(inside, Way.UP, number_of("b")),
        "the other way": Seal(KEY).close(inside, Way.DOWN, number_of("a")),
        "altered": answer[:-9] + bytes([answer[-9] ^ 1]) + answer[-8:],
        "no question": Seal(OTHER).close(ask_for_resync(b"", "more"), Way.UP, ANYBODY),
        "nothing": b"",
    }
    for what, bad in strange.items():
        with pytest.raises(perbit.DecodeError, match="seal"):
            server.receive("a", bad)
        assert "a" in server._pending, what
    with pytest.raises(ResyncNeeded, match="seal"):
        client.receive(answer)  # reflected to the client
    assert server.receive("a", answer) is not None  # the good one is still waited for


def test_a_frame_for_one_client_is_none_for_another() -> None:
    server, clients = ServerSession(protocol_of("mcm"), 0, key=KEY), {name: ClientSession(key=KEY) for name in "ab"}
    for name, client in clients.items():
        exchange(server, name, client, tensors(), None)
    with pytest.raises(ResyncNeeded, match="seal"):
        clients["b"].receive(server.send("a", tensors(1)))


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65, "text" * 8])
def test_what_is_no_key_is_refused(key: Any) -> None:
    for make in (lambda: ServerSession(protocol_of(), key=key), lambda: ClientSession(key=key)):
        with pytest.raises(perbit.SpecError, match="a key has 16 to 64 bytes"):
            make()


# --- room -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["federated", "mcm", "rand_mcm", "double_squeeze", "artemis"])
def test_a_limit_in_bytes_is_kept(preset: str) -> None:
    """Clients that come, stay away and do not answer: the oldest leave, and whoever comes back is helped."""
    server, rng = ServerSession(small(preset), 0, memory="400 kB"), np.random.default_rng(0)
    clients = [ClientSession() for _ in range(40)]
    for round_ in range(25):
        server.publish(noisy(round_))
        for who in map(int, rng.choice(40, 8, replace=False)):
            frame = server.send(who)
            assert server.memory_used <= 400_000
            received = clients[who].receive(frame)
            answer = clients[who].reply(received)
            if rng.random() < 0.8:
                server.receive(who, answer)
            assert server.memory_used <= 400_000


def test_a_limit_too_small_for_the_model_says_so() -> None:
    server = ServerSession(protocol_of(), memory="10 kB")
    with pytest.raises(perbit.SpecError, match="memory=10000 bytes is too little for this model, which needs at least"):
        server.publish(noisy(0))
    assert not server.has_model


@pytest.mark.parametrize("memory", ["", "many", "2 XB", 0, -1, 1.5, True, "-3 MB"])
def test_what_is_no_size_is_refused(memory: Any) -> None:
    with pytest.raises(perbit.SpecError, match="number of bytes"):
        ServerSession(protocol_of(), memory=memory)


def test_what_is_pending_counts_and_leaves() -> None:
    server = ServerSession(small("rand_mcm"), 0, memory="1 MB")
    for who in range(300):
        server.send(who, noisy(0))
    assert server.memory_used <= 1_000_000
    assert 0 < len(server._pending) < 300


# --- what strangers may take of a server's memory ---------------------------------------------------------------------------


def test_strangers_that_ask_are_counted_and_bounded() -> None:
    server = ServerSession(small("federated"), 0, memory="1 MB")
    server.publish(tensors())
    before, question, refused = server.memory_used, ask_for_resync(b"", "?"), 0
    for stranger in range(2000):
        try:
            server.receive(stranger, question)
        except TooManyResyncs:
            refused += 1
        except ResyncNeeded:
            pass
    assert refused > 1500
    assert before < server.memory_used < 1_000_000
    assert not server._places._gone  # of strangers nothing is held that could be removed
    server.publish(tensors(1))
    with pytest.raises(ResyncNeeded):
        server.receive("one more", question)


def test_only_so_many_sets_of_tensors_are_answered_with() -> None:
    model = {f"w{i}": np.full((40, 40), 1.0, np.float32) for i in range(20)}
    server = ServerSession(protocol_of("federated"), 0)
    clients = {name: ClientSession() for name in model}
    for number, (name, client) in enumerate(clients.items()):
        client.receive(server.send(name, model))
        answer = client.reply({name: model[name] + 1})
        if number < 16:
            server.receive(name, answer)
        else:
            with pytest.raises(perbit.DecodeError, match="16 different sets of tensors"):
                server.receive(name, answer)
    server.forget("w0")
    late = ClientSession()
    late.receive(server.send("late", model))
    assert server.receive("late", late.reply({"w19": model["w19"] + 1})) is not None  # room was made


def test_a_folder_may_be_text_and_a_protocol_may_not(tmp_path: Any) -> None:
    server, client = ServerSession(protocol_of("federated"), 0), ClientSession(str(tmp_path / "state"))
    exchange(server, "a", client, tensors(), None)
    assert ClientSession(str(tmp_path / "state")).digest == client.digest
    with pytest.raises(perbit.SpecError, match="a session takes a Protocol"):
        ServerSession("mcm")  # type: ignore[arg-type]


def test_who_answers_in_anothers_name_costs_it_an_answer_and_one_model_at_most() -> None:
    """Two connections of one name, where a transport does not tell clients apart."""
    server = ServerSession(presets.mcm("qsgd(7) | rans"), seed=0)
    honest, impostor, other = ClientSession(), ClientSession(), ClientSession()
    model = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    sent = server.send("a", {"w": model})
    honest.receive(sent)
    impostor.receive(sent)
    other.receive(server.send("b"))
    server.receive("a", impostor.reply({"w": 3 * model}))
    with pytest.raises(StaleAnswer):
        server.receive("a", honest.reply({"w": model + 1}))
    assert server.receive("b", other.reply({"w": model + 1})) is not None
    sent = server.send("a", {"w": model + 2})
    try:
        honest.receive(sent)
    except ResyncNeeded as needed:
        with pytest.raises(ResyncNeeded):
            server.receive("a", needed.answer)
        honest.receive(server.resync("a"))
    assert server.receive("a", honest.reply({"w": model + 3})) is not None
    assert server.digest("a") == honest.digest
    other.receive(server.send("b"))
    assert server.n_resyncs <= 1
