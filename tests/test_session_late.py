"""Answers that come late, twice or never: they cost no full frame, change nothing they should not, and leave nothing behind."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.channels.store import Changes, InMemory
from perbit.protocols.protocol import Average
from perbit.session import ClientSession, ServerSession, StaleAnswer, protocol_of
from session_exchange import EACH_PRESET, exchange, is_same, kind, noisy, session, small, trained

RNG = np.random.default_rng(0)


def started(name: str, **more: Any) -> tuple[ServerSession, ClientSession]:
    server, client = session(small(name), **more), ClientSession()
    for i in range(2):
        exchange(server, "c", client, noisy(i), lambda x: trained(x, RNG))
    return server, client


def answered(server: ServerSession, client: ClientSession, tensors: Any, step: Any = trained) -> tuple[str, bytes]:
    """The kind of the message, and the answer, which is still on its way."""
    frame = server.send("c", tensors)
    received = client.receive(frame)
    return kind(frame), client.reply(None if step is None else step(received, RNG))


# --- no full frame ----------------------------------------------------------------------------------------------------


@EACH_PRESET
@pytest.mark.parametrize("lost", [1, 2, 5])
def test_an_answer_that_never_arrives_costs_no_full_frame(name: str, lost: int) -> None:
    server, client = started(name)
    before = server.digest("c")
    for i in range(lost):
        assert answered(server, client, noisy(2 + i))[0] == "DELTA"
        assert server.digest("c") == before
    frame = server.send("c", noisy(9))
    assert kind(frame) == "DELTA"
    client.receive(frame)
    server.receive("c", client.reply(noisy(10)))
    assert server.digest("c") == client.digest != before


@EACH_PRESET
def test_an_answer_that_arrives_after_the_next_message_is_left_out(name: str) -> None:
    server, client = started(name)
    before = server.digest("c")
    found, late = answered(server, client, noisy(2))
    assert found == "DELTA"
    frame = server.send("c", noisy(3))
    assert kind(frame) == "DELTA"
    with pytest.raises(StaleAnswer):
        server.receive("c", late)
    assert server.digest("c") == before
    client.receive(frame)
    assert server.receive("c", client.reply(noisy(4))) is not None
    assert server.digest("c") == client.digest


@EACH_PRESET
def test_two_late_answers_in_a_row(name: str) -> None:
    server, client = started(name)
    late = []
    for i in (2, 3):
        found, answer = answered(server, client, noisy(i))
        assert found == "DELTA"
        late.append(answer)
    found, answer = answered(server, client, noisy(4))
    assert found == "DELTA"
    for stale in late:
        with pytest.raises(StaleAnswer):
            server.receive("c", stale)
    assert server.receive("c", answer) is not None
    assert server.digest("c") == client.digest
    assert kind(server.send("c", noisy(5))) == "DELTA"


@EACH_PRESET
def test_messages_with_the_same_model_may_get_lost_too(name: str) -> None:
    """Training that starts again from a model that the client holds already."""
    server, client = started(name)
    kinds = [answered(server, client, noisy(1), trained)[0] for _ in range(3)]
    found, answer = answered(server, client, noisy(1))
    server.receive("c", answer)
    assert [*kinds, found] == ["UNCHANGED"] * 4
    assert server.digest("c") == client.digest


@EACH_PRESET
def test_what_a_lost_answer_said_is_as_if_it_had_not_been_said(name: str) -> None:
    """Bit for bit: a client whose answers got lost does what one does that was never asked, residuals included."""
    got = []
    for is_asked in (False, True):
        server, client = session(small(name), absent="ignored"), ClientSession()
        rng = np.random.default_rng(1)
        for i in range(2):
            exchange(server, "c", client, noisy(i), lambda x, rng=rng: trained(x, rng))
        server.publish(noisy(2))
        if is_asked and name != "rand_mcm_averaged":  # there the server counts what it sent, until the next reset
            answered(server, client, noisy(2))
        received = client.receive(server.send("c", noisy(3)))
        got.append((received, server.receive("c", client.reply(trained(received, np.random.default_rng(2))))))
    (held, replied), (other_held, other_replied) = got
    assert is_same(held, other_held)
    assert replied is not None
    assert other_replied is not None
    assert is_same(replied, other_replied)


@EACH_PRESET
def test_a_late_answer_to_the_model_before_is_still_taken(name: str) -> None:
    """The server went on, but sent this client nothing since: its answer counts, from the model it was about."""
    server, client = started(name)
    _, late = answered(server, client, noisy(2))
    server.publish(noisy(3))
    got = server.receive("c", late)
    assert got is not None
    assert server.digest("c") == client.digest
    server.publish(noisy(4))
    _, late = answered(server, client, noisy(5))
    for i in (6, 7):
        server.publish(noisy(i))
    with pytest.raises(StaleAnswer):  # but not from one that nobody keeps any more
        server.receive("c", late)
    assert kind(server.send("c", noisy(8))) == "DELTA"
    exchange(server, "c", client, noisy(8), None)
    assert server.n_resyncs == 0


def test_a_late_answer_counts_from_the_model_it_was_about() -> None:
    server, client = ServerSession(protocol_of("federated", up="raw", down="raw"), 0), ClientSession()
    exchange(server, "c", client, noisy(0), None)
    received = client.receive(server.send("c", noisy(1)))
    answer = client.reply({**received, "w": received["w"] + 1})
    server.publish(noisy(2))
    got = server.receive("c", answer)
    assert got is not None
    np.testing.assert_allclose(got["w"], noisy(1)["w"] + 1, atol=1e-5)


# --- nothing happens twice --------------------------------------------------------------------------------------------


@EACH_PRESET
def test_a_replayed_answer_is_stale_and_changes_nothing(name: str) -> None:
    server, client = started(name)
    _, answer = answered(server, client, noisy(2))
    server.receive("c", answer)
    before, mean = server.digest("c"), server.mean()
    for _ in range(3):
        with pytest.raises(StaleAnswer):
            server.receive("c", answer)
    assert server.digest("c") == before == client.digest
    assert is_same(server.mean(), mean)
    assert kind(server.send("c", noisy(3))) == "DELTA"


def test_giving_up_on_a_message_leaves_the_client_where_it_was() -> None:
    server, client = started("mcm")
    _, answer = answered(server, client, noisy(2))
    server.forget_pending("c")
    with pytest.raises(StaleAnswer):
        server.receive("c", answer)
    assert kind(server.send("c", noisy(3))) == "DELTA"
    exchange(server, "c", client, noisy(3), None)
    assert server.n_resyncs == 0


def test_a_damaged_answer_is_as_good_as_lost() -> None:
    """Both ends know where the client was before, so nobody needs a full model because of it."""
    server, client = started("mcm")
    _, answer = answered(server, client, noisy(2))
    with pytest.raises(perbit.DecodeError) as error:
        server.receive("c", answer[:-1])
    assert not isinstance(error.value, StaleAnswer)
    server.forget_pending("c")
    assert kind(server.send("c", noisy(3))) == "DELTA"


# --- nothing is left behind -------------------------------------------------------------------------------------------


def arrays(value: Any, found: dict[int, Any] | None = None) -> dict[int, Any]:
    """Every array that a value holds on to, by the memory it lies in."""
    found = {} if found is None else found
    if isinstance(value, np.ndarray):
        base = value
        while isinstance(base.base, np.ndarray):
            base = base.base
        found[id(base)] = base
    elif isinstance(value, dict):
        for item in value.values():
            arrays(item, found)
    elif isinstance(value, list | tuple | set):
        for item in value:
            arrays(item, found)
    elif isinstance(value, ServerSession | InMemory | Changes | Average):
        arrays(vars(value), found)
    elif is_dataclass(value) and not isinstance(value, type):
        arrays([getattr(value, field.name) for field in fields(value)], found)
    return found


def n_models(server: ServerSession) -> float:
    """How many models' worth of memory a session holds."""
    return float(sum(x.nbytes for x in arrays(server).values()) / (4 * 1205))


@EACH_PRESET
def test_dropouts_leave_nothing_behind(name: str) -> None:
    """Two hundred clients that take a model and are never heard of again, without any engine that gives up on them."""
    server, client = session(small(name), max_clients=10), ClientSession()
    sizes = []
    for round_ in range(200):
        exchange(server, "stays", client, noisy(round_), lambda x: trained(x, RNG))
        server.send(f"gone-{round_}", noisy(round_))
        assert len(server._pending) <= 2
        if round_ in (20, 199):
            sizes.append(n_models(server))
    assert len(server._clients) == 1
    assert len(server._bases) == 2
    assert sizes[1] <= sizes[0] + 0.5
    assert sizes[1] < 30


@EACH_PRESET
def test_known_clients_that_stop_answering_leave_nothing_behind(name: str) -> None:
    server, clients = session(small(name)), [ClientSession() for _ in range(4)]
    for i, client in enumerate(clients):
        exchange(server, i, client, noisy(0), lambda x: trained(x, RNG))
    sizes = []
    for round_ in range(1, 60):
        exchange(server, 0, clients[0], noisy(round_), lambda x: trained(x, RNG))
        for i in (1, 2, 3):
            server.send(i, noisy(round_))
        assert len(server._pending) <= 3
        if round_ in (20, 59):
            sizes.append(n_models(server))
    assert sizes[1] <= sizes[0] + 0.5
    assert sizes[1] < 40


def test_late_answers_cost_few_bytes() -> None:
    """The default protocol, with none and with a third of the answers too late: the way down costs about the same."""
    totals = []
    for share in (0.0, 0.3):
        rng, total = np.random.default_rng(0), 0
        server, clients = ServerSession(protocol_of(), 0), [ClientSession() for _ in range(10)]
        w = noisy(0)["w"]
        for round_ in range(30):
            for i in rng.choice(10, 4, replace=False):
                frame = server.send(int(i), {"w": w})
                total += len(frame) if kind(frame) != "FULL" else 0
                answer = clients[i].reply({"w": clients[i].receive(frame)["w"] + 0.1})
                if round_ < 3 or rng.random() >= share:
                    server.receive(int(i), answer)
            w = w + rng.normal(size=w.shape).astype(np.float32) / 30
        totals.append(total)
    assert totals[1] < 1.3 * totals[0]
