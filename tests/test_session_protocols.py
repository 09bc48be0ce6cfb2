"""Sessions: any protocol between a server and clients that come and go, what it costs, and how clients learn of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perbit
from perbit import presets
from perbit.channels import Channel, Direct, ErrorFeedback, Shifted
from perbit.protocol import Protocol
from perbit.session import ClientSession, ServerSession, protocol_of
from perbit.session.wiring import Wiring
from session_exchange import EACH_PRESET, SENDABLE, exchange, model, small, trained

# --- every protocol -----------------------------------------------------------------------------------------------------


def average(replies: list[dict[str, Any]]) -> dict[str, Any]:
    mean = {name: np.mean([r[name] for r in replies], axis=0) for name in ("w", "b")}
    return {"w": mean["w"].astype(np.float32), "b": mean["b"], **{n: replies[0][n] for n in ("steps", "mask")}}


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
