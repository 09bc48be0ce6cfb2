"""The downlink `Versions`: frames shared by clients at one version, a bounded table, anchors, and full models as the last resort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perbit
from perbit.channels import Direct, ErrorFeedback, Layout, Shifted, Summed
from perbit.protocols import presets
from perbit.protocols.downlinks import Followed, References, Start, Versions
from perbit.protocols.downlinks.followed import Chain
from perbit.protocols.protocol import Protocol
from perbit.session import ClientSession, ResyncNeeded, ServerSession
from perbit.session.contents import frames_in
from session_exchange import exchange, is_same, kind, noisy, start

UP, DOWN = "topk(0.05) | uniform(4) | rans", "uniform(4) | rans"
CODEC_FRAME = 1200 // 2  # of DOWN on 1200 values, at the most


def federated(keep: int = 50, **more: Any) -> ServerSession:
    return ServerSession(presets.federated(**{"up": UP, "down": DOWN, "keep": keep, **more}), 0)


def references(server: ServerSession) -> References:
    side = server._server.downlink
    found = side.references if isinstance(side, Chain) else side
    assert isinstance(found, References)
    return found


def table(server: ServerSession) -> dict[int, Any]:
    return references(server).table


def check_table(server: ServerSession, keep: int) -> None:
    """The counts are those of the clients and of the messages under way, and the table has no more rows than it may."""
    rows = table(server)
    assert len(rows) <= keep
    spots = [server._places.get(client) for client in server._clients]
    spots += [pending.place for pending in server._pending.values()]
    counted = dict.fromkeys(rows, 0)
    for spot in spots:
        for name in (spot.anchor, spot.at):
            if name in counted:
                counted[name] += 1
    assert {name: found.users for name, found in rows.items()} == counted
    reached = {to for _, to, _ in references(server).coded.values()}
    assert all(users > 0 or name in reached for name, users in counted.items())


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the downlink's channel coded something."""
    calls = [0]
    send = Shifted.send_flat

    def counting(self: Any, *args: Any) -> Any:
        calls[0] += 1
        return send(self, *args)

    monkeypatch.setattr(Shifted, "send_flat", counting)
    return calls


# --- what is shared -------------------------------------------------------------------------------------------------------


def test_clients_at_one_version_share_one_coded_frame(coded: list[int]) -> None:
    server, clients = federated(), [ClientSession() for _ in range(5)]
    for i, client in enumerate(clients):
        exchange(server, i, client, noisy(0), None)
    for round_ in range(1, 4):
        before = coded[0]
        sent = []
        for i, client in enumerate(clients):
            frame = server.send(i, noisy(round_))
            sent.append(frames_in(frame))
            client.receive(frame)
            server.receive(i, client.reply())
        assert coded[0] == before + 1
        assert all(inner == sent[0] for inner in sent)
    held = {client.receive(server.send(i, noisy(3)))["w"].tobytes() for i, client in enumerate(clients)}
    assert len(held) == 1


def test_clients_that_were_away_for_equally_long_share_a_frame_too(coded: list[int]) -> None:
    server, clients = federated(), [ClientSession() for _ in range(6)]
    for i, client in enumerate(clients):
        exchange(server, i, client, noisy(0), None)
    for i in (3, 4, 5):
        exchange(server, i, clients[i], noisy(1), None)
    before = coded[0]
    inner = [tuple(frames_in(server.send(i, noisy(2)))) for i in range(6)]
    assert coded[0] == before + 2
    assert [inner[i] == inner[0] for i in range(6)] == [True, True, True, False, False, False]


@pytest.mark.parametrize("away", [1, 5, 40])
def test_one_frame_brings_a_client_up_to_date_however_long_it_was_away(away: int) -> None:
    server, busy, idle = federated(), ClientSession(), ClientSession()
    for i, client in enumerate((busy, idle)):
        exchange(server, i, client, noisy(0), None)
    for round_ in range(1, away + 1):
        exchange(server, 0, busy, noisy(round_), None)
    frame = server.send(1, noisy(away + 1))
    assert kind(frame) == "DELTA"
    assert start(frame) == Start.HERE
    assert len(frames_in(frame)) == 1
    assert len(frame) < CODEC_FRAME + 200
    got = idle.receive(frame)
    server.receive(1, idle.reply())
    assert server.digest(1) == idle.digest
    error = np.abs(got["w"] - noisy(away + 1)["w"]).max()
    assert error < 0.8  # sixteen levels over the difference of two models, which is up to six


def test_what_clients_hold_follows_the_model() -> None:
    """h + C(w - h): what one frame left out, the next one brings."""
    server, client, target = federated(), ClientSession(), noisy(1)
    exchange(server, 0, client, noisy(0), None)
    errors = []
    for step in range(6):
        target["b"] = target["b"] + 1  # a new version, whose matrix is the same
        got = client.receive(server.send(0, {**target, "steps": np.array(step)}))
        server.receive(0, client.reply())
        errors.append(np.abs(got["w"] - target["w"]).max())
    assert errors[-1] < 1e-4 < errors[0]


# --- what is kept ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("population", [None, 4])
def test_the_table_stays_small_while_clients_are_in_step(population: int | None) -> None:
    server = ServerSession(presets.federated(), 0, population=population)
    clients = [ClientSession() for _ in range(4)]
    for round_ in range(100):
        for i, client in enumerate(clients):
            exchange(server, i, client, noisy(round_), None)
            assert len(table(server)) <= 3
        check_table(server, 3)
    for i in range(4):
        server.forget(i)
    server.publish(noisy(1000))
    assert table(server) == {}


def test_a_reference_is_dropped_when_its_last_client_leaves() -> None:
    server, clients = federated(), [ClientSession() for _ in range(3)]
    for round_ in range(3):
        for i in range(round_, 3):  # client i stays at version i
            exchange(server, i, clients[i], noisy(round_), None)
    assert len(table(server)) == 3
    exchange(server, 1, clients[1], noisy(3), None)
    check_table(server, 4)
    server.forget(2)
    assert len(table(server)) == 2  # the anchor of all, and where client 1 is
    check_table(server, 4)


@pytest.mark.parametrize(
    "how", ["publish", "resync", "forget", "forget_pending", "bad answer", "max_clients", "newer message"]
)
def test_no_way_out_leaves_a_reference_behind(how: str) -> None:
    server = ServerSession(presets.federated(keep=10), 0, max_clients=1 if how == "max_clients" else None)
    client = ClientSession()
    exchange(server, 0, client, noisy(0), None)
    server.send(0, noisy(1))
    if how == "publish":
        for i in (2, 3, 4):
            server.publish(noisy(i))
        assert not server._pending
    elif how == "resync":
        client.receive(server.resync(0))
        server.receive(0, client.reply())
    elif how == "bad answer":
        with pytest.raises(perbit.DecodeError):
            server.receive(0, b"?")
    elif how == "max_clients":
        exchange(server, 1, ClientSession(), noisy(1), None)
        assert server.digest(0) is None
    elif how == "newer message":
        server.send(0, noisy(2))
        client.receive(server.send(0, noisy(2)))
        server.receive(0, client.reply())
    else:
        getattr(server, how)(0)
    check_table(server, 3)
    for who in (0, 1):
        server.forget(who)
    server.publish(noisy(9))
    assert table(server) == {}
    exchange(server, 0, client, noisy(10), None)  # and it goes on from an empty table


def test_a_server_may_publish_before_anybody_comes() -> None:
    server, client = federated(), ClientSession()
    for i in range(4):
        server.publish(noisy(i))
    assert np.array_equal(client.receive(server.send(0))["w"], noisy(3)["w"])


# --- anchors and full models ------------------------------------------------------------------------------------------------


def test_a_client_falls_back_on_its_anchor_then_on_a_full_model() -> None:
    server, client = federated(keep=4), ClientSession()
    exchange(server, "away", client, noisy(0), None)
    exchange(server, "away", client, noisy(1), None)
    helpers = [ClientSession() for _ in range(8)]
    for i, helper in enumerate(helpers[:3]):  # all start at one anchor, and each stays where it came to
        exchange(server, i, helper, noisy(2), None)
    for i, helper in enumerate(helpers[:3]):
        exchange(server, i, helper, noisy(3 + i), None)
    frame = server.send("away", noisy(6))
    assert (kind(frame), start(frame)) == ("DELTA", Start.ANCHOR)
    assert len(frame) < CODEC_FRAME + 200
    client.receive(frame)
    server.receive("away", client.reply())
    assert server.digest("away") == client.digest
    for i, helper in enumerate(helpers[3:]):  # new anchors, which others need more
        exchange(server, 3 + i, helper, noisy(7 + i), None)
        exchange(server, 3 + i, helper, noisy(17 + i), None)
    frame = server.send("away", noisy(30))
    assert (kind(frame), start(frame)) == ("DELTA", Start.RESET)
    assert len(frame) > 4 * 1200
    got = client.receive(frame)
    server.receive("away", client.reply())
    assert server.digest("away") == client.digest
    assert np.array_equal(got["w"], noisy(30)["w"])
    assert server.n_resyncs == 0


@pytest.mark.parametrize("name", ["mcm", "federated", "double_squeeze"])
def test_with_a_folder_anchors_that_leave_the_table_are_kept_on_disk(name: str, tmp_path: Path) -> None:
    """A client that returns after all room in memory went to others is sent a coded frame, not a full model."""
    made = presets.protocol_of(name)
    assert isinstance(made.downlink, Versions | Followed)
    server = ServerSession(replace(made, downlink=replace(made.downlink, keep=4), folder=str(tmp_path)), 0)
    client, others = ClientSession(), [ClientSession() for _ in range(12)]
    exchange(server, "away", client, noisy(0), None)
    exchange(server, "away", client, noisy(1), None)
    for i, other in enumerate(others):  # each brings an anchor, and goes on from it
        exchange(server, i, other, noisy(2 * i + 2), None)
        exchange(server, i, other, noisy(2 * i + 3), None)
        assert len(table(server)) <= 4
    frame = server.send("away", noisy(40))
    assert (kind(frame), start(frame)) == ("DELTA", Start.ANCHOR)
    assert len(frame) < 4 * 1200 / 2
    client.receive(frame)
    server.receive("away", client.reply())
    assert server.digest("away") == client.digest
    for i in range(12):
        assert start(server.send(i, noisy(41))) != Start.RESET
    assert server.n_resyncs == 0
    assert list(tmp_path.iterdir()) == []


def test_an_anchor_on_disk_is_dropped_when_its_last_client_leaves(tmp_path: Path) -> None:
    server = ServerSession(replace(presets.federated(keep=2), folder=str(tmp_path)), 0)
    for i in range(6):
        exchange(server, i, ClientSession(), noisy(i), None)
    side = references(server)
    assert side.shelf is not None
    assert len(side.shelved) == len(side.shelf) == 4  # six anchors, of which two are in memory
    for i in range(6):
        server.forget(i)
    server.publish(noisy(10))
    assert (len(side.table), len(side.shelved), len(side.shelf)) == (0, 0, 0)


def test_the_shelf_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perbit.protocols.downlinks.references._SHELVED", 3)
    server = ServerSession(replace(presets.federated(keep=2), folder=str(tmp_path)), 0)
    clients = [ClientSession() for _ in range(9)]
    for i, client in enumerate(clients):
        exchange(server, i, client, noisy(i), None)
    side = references(server)
    assert side.shelf is not None
    assert len(side.shelved) == len(side.shelf) == 3
    frames = [server.send(i, noisy(20)) for i in (0, 5)]
    assert [start(frame) for frame in frames] == [Start.RESET, Start.HERE]  # the oldest has gone


def test_a_damaged_anchor_on_disk_is_found(tmp_path: Path) -> None:
    server, client = ServerSession(replace(presets.federated(keep=2), folder=str(tmp_path)), 0), ClientSession()
    exchange(server, "a", client, noisy(0), None)
    for i in range(4):
        exchange(server, i, ClientSession(), noisy(i + 1), None)
    shelf = references(server).shelf
    assert shelf is not None
    shelf._file.seek(shelf._row_bytes * shelf._heads[1].row + 40)
    shelf._file.write(b"\xff\xff")
    with pytest.raises(ResyncNeeded, match="made against memory"):
        client.receive(server.send("a", noisy(9)))


def test_new_clients_in_every_round_do_not_crowd_out_the_others() -> None:
    """Each round brings an anchor; a table full of them must leave room for those who are in step."""
    server, clients = federated(keep=4), {i: ClientSession() for i in range(21)}
    for round_ in range(20):
        for i in (0, round_ + 1):
            frame = server.send(i, noisy(round_))
            assert kind(frame) == ("FULL" if round_ == 0 or i else "DELTA")
            assert round_ == 0 or i or start(frame) == Start.HERE
            clients[i].receive(frame)
            server.receive(i, clients[i].reply())
            assert server.digest(i) == clients[i].digest
            check_table(server, 4)
    assert sum(found.is_anchor for found in table(server).values()) == 3
    assert server.n_resyncs == 0


def test_after_its_reference_left_the_table_a_client_is_still_known_to_hold_the_model() -> None:
    server, client = federated(keep=2), ClientSession()
    exchange(server, "a", client, noisy(0), None)
    exchange(server, "a", client, noisy(1), None)
    for i in range(3):  # at the same version, by full models and steps of their own
        exchange(server, i, ClientSession(), noisy(1), None)
    other = ClientSession()
    exchange(server, "b", other, noisy(1), None)
    frame = server.send("a", noisy(1))
    assert kind(frame) == "UNCHANGED"
    client.receive(frame)
    server.receive("a", client.reply())
    assert server.n_resyncs == 0


def test_exact_tensors_are_right_whatever_a_frame_starts_from() -> None:
    """An anchor may belong to both states that a client keeps; the exact tensors belong to one."""
    server, client = federated(keep=2), ClientSession()
    exchange(server, "a", client, noisy(0, steps=0), None)
    exchange(server, "a", client, noisy(1, steps=1), None)
    other = ClientSession()
    exchange(server, "b", other, noisy(2, steps=1), None)
    exchange(server, "b", other, noisy(3, steps=1), None)
    got = client.receive(server.send("a", noisy(4, steps=1)))
    assert got["steps"] == 1


STORY = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from(["fine", "lost frame", "lost answer", "late", "forget", "restart"])),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(STORY, st.sampled_from([2, 3, 4]), st.sampled_from(["raw", "uniform(4) | rans", "qsgd(7) | rans", "followed"]))
def test_both_ends_agree_and_the_table_is_bounded_in_any_story(
    story: list[tuple[int, str]], keep: int, down: str
) -> None:
    """Also for the other downlink with such a table, `Followed`."""
    chain = Followed(Summed(ErrorFeedback(Direct("topk(0.1)"))), keep)
    followed = Protocol("followed", Direct("topk(0.1)"), chain, "update")
    server = ServerSession(followed, 0) if down == "followed" else federated(keep, down=down)
    clients, late = [ClientSession() for _ in range(8)], dict[int, bytes]()
    for round_, (who, event) in enumerate(story):
        current = noisy(round_ // 2, round_ // 2)
        if event == "forget":
            server.forget(who)
        if event == "restart" and round_:
            server.state = server.state
        frame = server.send(who, current)
        check_table(server, keep)
        if event == "lost frame":
            continue
        got = clients[who].receive(frame)
        assert got["steps"] == round_ // 2
        if down == "raw":
            np.testing.assert_allclose(got["w"], current["w"], atol=1e-6)
        answer = clients[who].reply(got)
        if event == "late":
            late[who] = answer
        elif event != "lost answer":
            server.receive(who, answer)
            assert server.digest(who) == clients[who].digest
        if who in late and event == "fine":
            with pytest.raises(perbit.StateMismatch):
                server.receive(who, late.pop(who))
        check_table(server, keep)
    assert server.n_resyncs == 0


def test_raw_frames_carry_the_model_exactly_wherever_they_start_from() -> None:
    server, clients, starts = federated(keep=4, down="raw"), [ClientSession() for _ in range(12)], set()
    rng = np.random.default_rng(0)
    for _ in range(150):
        who = int(rng.integers(12))
        tensors = {"w": rng.integers(-50, 50, (40, 30)).astype(np.float32)}  # differences without rounding
        frame = server.send(who, tensors)
        starts |= {start(frame)} if kind(frame) == "DELTA" else set()
        assert is_same(clients[who].receive(frame), tensors)
        server.receive(who, clients[who].reply())
        check_table(server, 4)
    assert starts == {Start.HERE, Start.ANCHOR, Start.RESET}
    assert server.n_resyncs == 0


# --- the first model ----------------------------------------------------------------------------------------------------


def test_full_models_can_be_coded_too() -> None:
    sizes = {}
    for first in ("raw", "fp16"):
        server, clients = federated(first=first), [ClientSession() for _ in range(3)]
        frames = [server.send(0, noisy(0))]
        clients[0].receive(frames[0])
        server.receive(0, clients[0].reply())
        assert server.digest(0) == clients[0].digest
        for i in (1, 2):  # and full models later on
            frames.append(server.send(i, noisy(i)))
            got = clients[i].receive(frames[-1])
            server.receive(i, clients[i].reply())
            assert server.digest(i) == clients[i].digest
            assert np.allclose(got["w"], noisy(i)["w"], atol=1e-2)
            assert np.array_equal(got["w"], noisy(i)["w"]) == (first == "raw")
        exchange(server, 0, clients[0], noisy(3), lambda x: x)
        sizes[first] = [len(frame) for frame in frames]
    for coded_size, raw_size in zip(sizes["fp16"], sizes["raw"], strict=True):
        assert coded_size < raw_size - 2 * 1200 + 100


def test_the_answer_counts_from_the_exact_model_even_if_the_first_one_was_coded() -> None:
    server, client = federated(first="fp16", up="raw"), ClientSession()
    got = exchange(server, 0, client, noisy(0), lambda x: {**x, "w": x["w"] + 1})
    assert got is not None
    np.testing.assert_allclose(got["w"], noisy(0)["w"] + 1, atol=1e-6)


# --- by itself ----------------------------------------------------------------------------------------------------------


def test_lone_arrays_and_lossy_memories() -> None:
    """The downlink alone, as simulations of convex problems run it; α < 1 for unbiased codecs."""
    for down in ("qsgd(7) | rans", "raw"):
        link = Versions(Shifted(Direct(down)), keep=3)
        first = np.zeros(50, np.float32)
        side, place, held = link.init(Layout.of(50), first, 2)
        rng = np.random.default_rng(0)
        for k in range(6):
            x = rng.normal(size=50).astype(np.float32)
            side, _ = link.publish(side, x, k)
            sent = link.deliver(side, None if k == 4 else place, 0, k)
            held, point = link.accept(held, list(sent.frames), sent.start)
            place = sent.place
            assert link.digest_at(place) == link.digest_of(held)
            np.testing.assert_allclose(point, x, atol=1e-6 if down == "raw" or k == 4 else 2)


def test_a_copy_of_the_side_goes_its_own_way() -> None:
    link = Versions(Shifted(Direct("raw")), keep=3)
    side, place, _ = link.init(Layout.of(5), np.zeros(5, np.float32), None)
    link.enter(side, place)
    copy = link.copied(side)
    link.publish(side, np.ones(5, np.float32), 0)
    link.deliver(side, place, 0, 0)
    link.release(side, place)
    assert [found.users for found in copy.table.values()] == [2]
    assert copy.model.sum() == 0


def test_a_client_that_lost_everything_asks_once() -> None:
    server, client = federated(keep=2), ClientSession()
    for i in range(3):
        exchange(server, 0, client, noisy(i), None)
    with pytest.raises(ResyncNeeded):
        ClientSession().receive(server.send(0, noisy(4)))
    exchange(server, 0, ClientSession(), noisy(4), None)
    check_table(server, 2)
    assert server.n_resyncs == 1
