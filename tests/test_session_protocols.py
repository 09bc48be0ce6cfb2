"""Sessions: any protocol between a server and clients that come and go, what it costs, and how clients learn of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perbit
from perbit.channels import Channel, Direct, ErrorFeedback, Shifted
from perbit.protocols import presets
from perbit.protocols.downlinks import Averaged, Shared, Versions
from perbit.protocols.protocol import Protocol
from perbit.session import ClientSession, ServerSession, protocol_of
from perbit.session.terms import Terms
from session_exchange import EACH_PRESET, SENDABLE, exchange, kind, model, noisy, session, small, trained

# --- every protocol -----------------------------------------------------------------------------------------------------


def average(replies: list[dict[str, Any]]) -> dict[str, Any]:
    mean = {name: np.mean([r[name] for r in replies], axis=0) for name in ("w", "b")}
    return {"w": mean["w"].astype(np.float32), "b": mean["b"], **{n: replies[0][n] for n in ("steps", "mask")}}


def train(protocol: Protocol, rounds: int) -> dict[str, Any]:
    """Four clients, of which some take part in each round; the counter and the dtypes are exact all the way."""
    rng = np.random.default_rng(0)
    server, clients = session(protocol, seed=1), {f"c{i}": ClientSession() for i in range(4)}
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
    more: dict[str, Any] = {"momentum": 0.1} if name == "deep_gradient_compression" else {}
    up = "topk(0.5)" if name == "deep_gradient_compression" else "qsgd(63) | rans"
    down = "qsgd(63) | rans" if presets.PRESETS[name].two_way else None
    current = train(protocol_of(name, up, down, **more), 25)
    assert np.abs(current["w"] - 1).mean() < 0.1
    assert np.abs(current["b"] - 1).mean() < 0.1


def test_raw_codecs_change_nothing() -> None:
    """What the server gets is what the client trained, to the last bit that float32 sums keep."""
    rng = np.random.default_rng(0)
    server, client = ServerSession(presets.fedavg(), seed=0), ClientSession()
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
    one = perbit.Plan.of("topk(k=1)", small=None)
    for name, exact in (("mcm", True), ("double_squeeze", False)):
        server, client = ServerSession(protocol_of(name, up="raw", down=one), seed=0), ClientSession()
        exchange(server, "c", client, {"w": np.zeros(4, np.float32)}, None)
        target = np.array([3, 2, 1, 0], np.float32)
        got = exchange(server, "c", client, {"w": target}, lambda x: {"w": x["w"] + 1})
        assert got is not None
        assert got["w"].tolist() == ((target + 1).tolist() if exact else [4, 1, 1, 1])


def test_frames_are_small() -> None:
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=(300, 400)).astype(np.float32), "steps": np.array(3)}
    server, client = ServerSession(protocol_of(), seed=0), ClientSession()
    full = server.send("c", start)
    assert len(full) > 4 * 120_000
    moved = {**client.receive(full), "steps": np.array(4)}
    moved["w"] = moved["w"] + rng.normal(size=(300, 400)).astype(np.float32) / 100
    answer = client.reply(moved)
    assert len(answer) < 4 * 120_000 / 40
    server.receive("c", answer)
    delta = server.send("c", moved)
    assert len(delta) < 4 * 120_000 / 5
    held = client.receive(delta)
    server.receive("c", client.reply())
    unchanged = server.send("c", moved)
    assert len(unchanged) < 24
    assert np.array_equal(client.receive(unchanged)["w"], held["w"])
    assert len(client.reply()) < 24


def test_clients_in_step_get_the_same_coded_frame_and_rand_mcm_draws_for_each() -> None:
    for name, distinct in (("mcm", 1), ("federated", 1), ("rand_mcm", 3)):
        server, clients = ServerSession(small(name), seed=0), [ClientSession() for _ in range(3)]
        for i, client in enumerate(clients):
            exchange(server, f"c{i}", client, noisy(0), None)
        for i, client in enumerate(clients):
            exchange(server, f"c{i}", client, noisy(1), None)
        held = [client.receive(server.send(f"c{i}", noisy(1)))["w"].tobytes() for i, client in enumerate(clients)]
        assert len(set(held)) == distinct


def test_a_strategy_that_averages_and_the_protocols_own_step_agree() -> None:
    """`receive` gives what any strategy can average; with raw codecs down both ways lead to one model."""
    by_mean, by_step = (ServerSession(presets.diana(alpha=0.3), seed=3) for _ in range(2))
    clients = [[ClientSession() for _ in range(3)] for _ in range(2)]
    current, rng = noisy(0), np.random.default_rng(0)
    by_step.publish(current)
    for k in range(6):
        present = [[0, 1, 2], [0], [1, 2], [2], [0, 2], [0, 1, 2]][k]
        noise = {i: rng.normal(size=(40, 30)).astype(np.float32) for i in present}
        replies = []
        for i in present:
            held = clients[0][i].receive(by_mean.send(i, current))
            replies.append(by_mean.receive(i, clients[0][i].reply({**held, "w": held["w"] - noise[i]})))
            held = clients[1][i].receive(by_step.send(i))
            by_step.receive(i, clients[1][i].reply({**held, "w": held["w"] - noise[i]}))
        by_step.step(1.0)
        current = average([reply for reply in replies if reply is not None])
        np.testing.assert_allclose(current["w"], by_step.tensors["w"], atol=1e-4)


# --- which protocols, and how clients learn of them -------------------------------------------------------------------


@EACH_PRESET
def test_protocols_are_described_and_built_again(name: str) -> None:
    server = session(small(name))
    server.publish(model())
    terms = server._terms
    built = Terms.from_bytes(terms.to_bytes())
    assert (built.uplink, built.downlink) == (terms.uplink, terms.downlink)
    assert (built.session, built.incarnation, built.seed) == (terms.session, terms.incarnation, terms.seed)
    assert (built.schema, built.exact) == (terms.schema, terms.exact)


def test_plans_and_budgets_are_described_too() -> None:
    plan = perbit.Plan.of("qsgd(7) | rans", rules={"w*": "topk(0.1) | fp16"}, small="fp16", whole_model=True)
    server = ServerSession(protocol_of("mcm", up=perbit.Budget.of("topk(?) | fp16", n_bits=8000), down=plan), 0)
    server.publish(model())
    built = Terms.from_bytes(server._terms.to_bytes())
    assert (built.uplink, built.downlink) == (server.protocol.uplink, server.protocol.downlink)


def test_a_budget_holds_for_every_update() -> None:
    protocol = protocol_of("ef21", up=perbit.Budget.of("topk(?) | fp16", n_bits=8000))
    server, client = ServerSession(protocol, 0), ClientSession()
    model = {"w": np.zeros((100, 100), np.float32)}
    for number in range(3):
        held = client.receive(server.send("a", model))
        noise = np.random.default_rng(number).laplace(size=(100, 100)).astype(np.float32)
        answer = client.reply({"w": held["w"] + noise})
        assert 950 <= len(answer) <= 1000 + 32  # the session's own head
        model = server.receive("a", answer) or {}


def test_random_codecs_keep_to_their_budget_too() -> None:
    channel = Direct(perbit.Budget.of("topk(?) | qsgd(1) | rans", n_bits=8000))
    state, _ = channel.init(10_000)
    for seed in range(30):
        assert len(channel.send(np.random.default_rng(seed).laplace(size=10_000), state, seed).frame) <= 1000


def test_a_biased_rule_gets_error_feedback() -> None:
    plan = perbit.Plan.of("qsgd(7) | rans", rules={"w*": "topk(0.1) | fp16"})
    assert isinstance(protocol_of(up=plan).uplink, ErrorFeedback)
    assert isinstance(protocol_of(up="qsgd(7) | rans").uplink, Direct)


def test_what_cannot_run_says_so() -> None:
    with pytest.raises(perbit.SpecError, match="ghost"):
        ServerSession(presets.ghost())
    with pytest.raises(perbit.SpecError, match="no protocol 'mmc'"):
        protocol_of("mmc")
    with pytest.raises(perbit.SpecError, match="has its codecs already"):
        protocol_of(presets.mcm(), up="raw")
    with pytest.raises(perbit.SpecError, match="numbered"):
        ServerSession(Protocol.of("plain", Direct("raw"), Direct("raw", numbered=False)))
    with pytest.raises(perbit.SpecError, match="population"):
        ServerSession(presets.rand_mcm_averaged()).send("c", model())
    with pytest.raises(perbit.SpecError, match="at least one client"):
        ServerSession(protocol_of(), max_clients=0)


def test_parts_that_clients_do_not_know_are_refused_before_anything_is_sent() -> None:
    class Own(Direct):
        pass

    own: Channel = Shifted(Own("raw"))
    with pytest.raises(perbit.SpecError, match="Own"):
        ServerSession(Protocol.of("own", own, Direct("raw")))
    Own.__name__ = "Direct"  # looks like one that is known
    with pytest.raises(perbit.SpecError, match="parts of its own"):
        ServerSession(Protocol.of("own", own, Direct("raw")))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Shared(Direct("raw"), groups=0), "groups"),
        (lambda: Shared(Direct("raw"), groups=1 << 40), "groups"),
        (lambda: Shared(Direct("raw"), keep=0), "keep"),
        (lambda: Shared(Direct("raw"), catch_up="sometimes"), "catch_up"),  # type: ignore[arg-type]
        (lambda: Versions(Shifted(Direct("raw")), keep=1), "keep"),
        (lambda: Versions(Shifted(Direct("raw")), first="none such"), "none such"),
        (lambda: Versions(Direct("raw")), "Shifted"),
        (lambda: Averaged("raw", reset_every=0), "reset_every"),
        (lambda: Averaged("raw", alpha=-3), "alpha"),
        (lambda: Averaged("none such"), "none such"),
    ],
)
def test_downlinks_refuse_what_makes_no_sense(make: Any, match: str) -> None:
    with pytest.raises(perbit.SpecError, match=match):
        make()


def test_kinds_of_frames() -> None:
    for protocol in (protocol_of(), presets.mcm(), presets.rand_mcm()):
        server, client = ServerSession(protocol, 0), ClientSession()
        kinds = []
        for value in (0, 0, 1, 1, 2):
            frame = server.send("c", noisy(value))
            kinds.append(kind(frame))
            client.receive(frame)
            server.receive("c", client.reply())
        assert kinds == ["FULL", "UNCHANGED", "DELTA", "UNCHANGED", "DELTA"]
