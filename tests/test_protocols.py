"""Every preset's equations on small cases worked by hand, partial participation, and the laws over all presets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import perbit
from perbit import theory
from perbit.channels import Layout, Shifted, Summed
from perbit.protocols import presets
from perbit.protocols.downlinks import Followed, PerClient, Shared, Versions
from perbit.protocols.protocol import Client, Protocol, Server

EACH_PRESET = pytest.mark.parametrize("name", presets.PRESETS)
HALF = "qsgd(1, bucket=0)"


def small(name: str) -> Protocol:
    """A preset with codecs that suit twelve values."""
    if name == "deep_gradient_compression":
        return presets.protocol_of(name, up="topk(0.3)", warmup_rounds=3)
    coarse = presets.PRESETS[name].make.__defaults__[0] == presets.QUANTIZE  # type: ignore[index]
    up = presets.ONE_LEVEL if coarse else None
    down = presets.ONE_LEVEL if coarse and presets.PRESETS[name].two_way else None
    return presets.protocol_of(name, up, down, **({"reset_every": 7} if name == "rand_mcm_averaged" else {}))


def play(
    protocol: Protocol, rounds: int, n_clients: int = 4, n: int = 12, participation: float = 1.0, step: float = 0.1
) -> tuple[Server, list[Client], int]:
    """Quadratics ½|w - c_i|²; the number of resets is counted."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(n_clients, n))
    server, clients = protocol.init(np.zeros(n, np.float32), n_clients)
    resets = 0
    for k in range(rounds):
        present = [i for i in range(n_clients) if rng.random() < participation] or [0]
        frames = {}
        for i in present:
            delivered = protocol.deliver(server, clients[i], seed=k)
            server, resets = delivered.server, resets + delivered.was_reset
            gradient = delivered.client.point - centres[i]
            response = protocol.respond(delivered.client, gradient.astype(np.float32), seed=k)
            frames[i], clients[i] = response
        server = protocol.advance(server, frames, step, seed=k)
    return server, clients, resets


def one_round(
    protocol: Protocol, gradients: list[list[float]], model: list[float], step: float
) -> tuple[Server, list[Client]]:
    """Send these gradients, step, and deliver the result to every client."""
    server, clients = protocol.init(np.array(model, np.float32), len(gradients))
    frames = {}
    for i, gradient in enumerate(gradients):
        frames[i], clients[i] = protocol.respond(clients[i], np.array(gradient, np.float32), seed=i)
    server = protocol.advance(server, frames, step, seed=0)
    for i in range(len(clients)):
        delivered = protocol.deliver(server, clients[i], seed=0)
        server, clients[i] = delivered.server, delivered.client
    return server, clients


# --- laws -------------------------------------------------------------------------------------------------------------


@EACH_PRESET
def test_ends_agree_after_many_rounds(name: str) -> None:
    """Server and clients hold bit-identical memories, and the same run gives the same bits."""
    protocol = small(name)
    server, clients, _ = play(protocol, 40)
    again, _, _ = play(protocol, 40)
    assert server.model.tobytes() == again.model.tobytes()
    for client in clients:
        up = server.uplinks.get(client.index)
        assert protocol.uplink.digest(up) == protocol.uplink.digest(client.uplink)
        shared = [protocol.uplink.shared(state.memory) for state in (up, client.uplink)]
        assert all(a.tobytes() == b.tobytes() for a, b in zip(*shared, strict=True))
    _check_downlink(protocol, server, clients)


def _check_downlink(protocol: Protocol, server: Server, clients: list[Client]) -> None:
    for i in range(len(clients)):
        delivered = protocol.deliver(server, clients[i], seed=99)
        server, client = delivered.server, delivered.client
        held = client.downlink
        if isinstance(protocol.downlink, Followed):
            state, held = server.downlink.state, held[0]
        elif isinstance(protocol.downlink, Versions):
            state, held = server.downlink.table[server.places.get(i).at].state, held[1]
        elif isinstance(protocol.downlink, Shared):
            state = server.downlink[i % protocol.downlink.groups].state
        elif isinstance(protocol.downlink, PerClient):
            state = server.places.get(i)
        else:
            continue
        channel = protocol.downlink.channel
        assert channel.digest(state) == channel.digest(held)
        for a, b in zip(channel.shared(state.memory), channel.shared(held.memory), strict=True):
            assert a.tobytes() == b.tobytes()


@EACH_PRESET
def test_clients_may_miss_rounds(name: str) -> None:
    server, _, _ = play(small(name), 60, participation=0.4, step=0.05)
    if name != "model_difference":  # made to fail
        assert np.isfinite(server.model).all()
        assert np.abs(server.model).max() < 20


@EACH_PRESET
def test_a_lost_uplink_is_noticed_and_sent_again(name: str) -> None:
    protocol = small(name)
    server, clients = protocol.init(np.zeros(12, np.float32), 1)
    gradient = np.arange(12, dtype=np.float32)
    lost = protocol.respond(clients[0], gradient, seed=0)
    again = protocol.respond(clients[0], gradient, seed=0)  # the state was not kept: the same frame
    assert again.frame == lost.frame
    careless = protocol.respond(lost.client, gradient, seed=1)
    with pytest.raises(perbit.StateMismatch, match="frame 0 did not arrive"):
        protocol.advance(server, {0: careless.frame}, 0.1, seed=0)
    server = protocol.advance(server, {0: again.frame}, 0.1, seed=0)
    with pytest.raises(perbit.StateMismatch, match="received before"):
        protocol.advance(server, {0: again.frame}, 0.1, seed=0)


@EACH_PRESET
def test_every_preset_says_where_it_comes_from(name: str) -> None:
    text = presets.PRESETS[name].make.__doc__ or ""
    assert len(text) > 60
    if name not in ("sgd", "update_compression", "model_compression"):
        assert "Differs from" in text, name


def test_a_model_of_tensors() -> None:
    """Channels, protocols and presets take named tensors just like vectors."""
    model = {"w": np.ones((3, 4), np.float32), "b": np.zeros(3, np.float32)}
    for name in ("sgd", "mcm", "fedavg_topk_ef", "rand_mcm"):
        protocol = presets.PRESETS[name].make()
        server, clients = protocol.init(model, 2)
        response = protocol.respond(clients[1], model, seed=0)
        server = protocol.advance(server, {1: response.frame}, 0.5, seed=0)
        client = protocol.deliver(server, response.client, seed=0).client
        assert {key: value.shape for key, value in client.model.items()} == {"w": (3, 4), "b": (3,)}


# --- equations, by hand (raw codecs, so that C(x) = x, unless a sparsifier is needed) ---------------------------------


def test_sgd_averages_and_steps() -> None:
    server, clients = one_round(presets.sgd(), [[1, 0], [3, 4]], [1, 1], step=0.5)
    assert server.model.tolist() == [0, 0]
    assert clients[0].point.tolist() == [0, 0]


def test_diana_by_hand() -> None:
    """ĝ = h + C(g - h), h += αC(g - h): with C = identity the gradient is exact and the memory follows."""
    server, clients = one_round(presets.diana("raw", alpha=0.5), [[2.0], [4.0]], [0], step=1)
    assert server.model.tolist() == [-3]
    assert [w.uplink.memory[0].tolist() for w in clients] == [[1.0], [2.0]]
    assert [server.uplinks.get(i).memory[0].tolist() for i in (0, 1)] == [[1.0], [2.0]]


def test_predicted_feedback_by_hand() -> None:
    """v = x + m; ĝ = h + C(v - h); m ← v - ĝ; h += αC(v - h), with C = top-1: after three rounds all of 3x has arrived."""
    protocol = presets.predicted_feedback("topk(k=1)", alpha=0.5)
    server, (client,) = protocol.init(np.zeros(2, np.float32), 1)
    for k, (model, left, expected) in enumerate(
        [([-4, 0], [0, 2], [2, 0]), ([-6, -4], [2, 0], [2, 2]), ([-12, -6], [0, 0], [4, 2])]
    ):
        frame, client = protocol.respond(client, np.array([4, 2], np.float32), seed=k)
        server = protocol.advance(server, {0: frame}, 1.0, seed=k)
        delivered = protocol.deliver(server, client, seed=k)
        server, client = delivered.server, delivered.client
        assert server.model.tolist() == model
        assert client.uplink.memory[0].tolist() == left
        assert client.uplink.memory[1][0].tolist() == expected


def test_predicted_both_ways_by_hand() -> None:
    """The uplink as above; down ŵ ← ŵ + C(w - ŵ) with C = top-1: what was left out of a frame comes with a later one."""
    protocol = presets.predicted_both_ways("topk(k=1)", "topk(k=1)", alpha=0.5)
    server, (client,) = protocol.init(np.zeros(2, np.float32), 1)
    for k, (model, held) in enumerate([([-4, 0], [-4, 0]), ([-6, -4], [-4, -4]), ([-12, -6], [-12, -4])]):
        frame, client = protocol.respond(client, np.array([4, 2], np.float32), seed=k)
        server = protocol.advance(server, {0: frame}, 1.0, seed=k)
        server, client = protocol.deliver(server, client, seed=k)[1:3]
        assert server.model.tolist() == model
        assert client.point.tolist() == held


def test_predicted_feedback_settles_on_what_is_always_the_same() -> None:
    """A constant needs no bytes in the end: h = x and m = 0. With α above twice the share that is sent, the memories grow."""
    x = np.random.default_rng(0).normal(size=500).astype(np.float32)
    left = {}
    for alpha in (0.01, 0.04):
        channel = presets.predicted_feedback(up="topk(0.01)", alpha=alpha).uplink
        sender, _ = channel.init(x)
        for k in range(2000):
            sender = channel.send(x, sender, seed=k).state
        left[alpha] = np.linalg.norm(sender.memory[0]) / np.linalg.norm(x)
        if alpha == 0.01:
            np.testing.assert_allclose(sender.memory[1][0], x, atol=0.05)
    assert left[0.01] < 0.5
    assert left[0.04] > 100


def test_absent_clients_of_predicted_feedback_count_for_nothing() -> None:
    protocol = presets.predicted_feedback("raw", alpha=0.5)
    server, clients = protocol.init(np.zeros(1, np.float32), 2)
    for k, present in enumerate([(0, 1), (0,)]):
        frames = {}
        for i in present:
            clients[i] = protocol.deliver(server, clients[i], seed=k).client
            frames[i], clients[i] = protocol.respond(clients[i], np.array([2.0 + 2 * i], np.float32), seed=k)
        server = protocol.advance(server, frames, 1.0, seed=k)
    assert server.model.tolist() == [-5]  # the mean of 2 and 4, then 2 alone


def test_mcm_by_hand() -> None:
    """Ω = w - H; ŵ = H + C(Ω); H += αC(Ω), with C = top-1 of two values."""
    protocol = presets.mcm("raw", "topk(k=1)", alpha_down=0.5)
    server, clients = one_round(protocol, [[-4, 2]], [0, 0], step=1)
    assert server.model.tolist() == [4, -2]  # the server's model is exact
    assert clients[0].point.tolist() == [4, 0]  # H + C(w - H) with H = 0
    assert clients[0].downlink[1].memory[0].tolist() == [2, 0]


def test_artemis_and_update_compression_by_hand() -> None:
    server, clients = one_round(presets.artemis("raw", "topk(k=1)"), [[-4, 2]], [0, 0], step=1)
    assert server.model.tolist() == [4, 0]  # degraded: the server steps with what it sent
    assert clients[0].point.tolist() == [4, 0]
    server, clients = one_round(presets.update_compression("raw", "topk(k=1)"), [[-4, 2]], [0, 0], step=1)
    assert server.model.tolist() == [4, -2]
    assert clients[0].point.tolist() == [4, 0]


def test_double_squeeze_and_dore_keep_the_rest() -> None:
    server, _ = one_round(presets.double_squeeze("raw", "topk(k=1)"), [[-4, 2]], [0, 0], step=1)
    assert server.model.tolist() == [4, 0]
    assert server.downlink.state.memory[1][0].tolist() == [0, -2]  # E: what was not sent
    server, _ = one_round(presets.dore("raw", "topk(k=1)", beta=0.5), [[-4, 2]], [0, 0], step=1)
    assert server.model.tolist() == [2, 0]  # w + β·C(q)
    assert server.downlink[0].state.memory[1][0].tolist() == [0, -2]


def test_model_and_difference_compression_by_hand() -> None:
    _, clients = one_round(presets.model_compression("raw", "topk(k=1)"), [[-4, 2]], [1, 9], step=1)
    assert clients[0].point.tolist() == [0, 7]  # C(w)
    _, clients = one_round(presets.model_difference("raw", "topk(k=1)"), [[-4, 2]], [1, 9], step=1)
    assert clients[0].point.tolist() == [5, 9]  # ŵ + C(w - ŵ)
    assert clients[0].downlink[1].memory[0].tolist() == [5, 9]


def test_ghost_by_hand() -> None:
    server, clients = one_round(presets.ghost("raw", "topk(k=1)"), [[-4, 2]], [1, 9], step=1)
    assert server.model.tolist() == [5, 7]
    assert clients[0].point.tolist() == [5, 9]  # w_{k-1} - γC(g)


def test_ecq_co3_and_ef21_by_hand() -> None:
    for protocol, memory in (
        (presets.ecq_sgd("topk(k=1)"), [0, 2]),
        (presets.co3("topk(k=1)"), [0, 2]),
        (presets.ef21("topk(k=1)"), [-4, 0]),
    ):
        server, clients = one_round(protocol, [[-4, 2]], [0, 0], step=1)
        assert server.model.tolist() == [4, 0]
        assert clients[0].uplink.memory[0].tolist() == memory, protocol.name


def test_fedavg_topk_ef_leaves_biases_alone() -> None:
    protocol = presets.fedavg_topk_ef(ratio=0.25)
    model = {"w": np.zeros((2, 2), np.float32), "b": np.zeros(2, np.float32)}
    server, clients = protocol.init(model, 1)
    change = {"w": np.array([[1, 2], [3, 4]], np.float32), "b": np.array([5, 6], np.float32)}
    response = protocol.respond(clients[0], change, seed=0)
    server = protocol.advance(server, {0: response.frame}, 1.0, seed=0)
    got = protocol.deliver(server, response.client, seed=0).client.model
    assert got["w"].tolist() == [[0, 0], [0, -4]]
    assert got["b"].tolist() == [-5, -6]


def test_rand_mcm_gives_each_client_its_own_draw() -> None:
    gradients = [list(range(-6, 6)) for _ in range(4)]
    _, clients = one_round(presets.rand_mcm("raw", HALF), gradients, [0] * 12, step=1)
    assert len({client.point.tobytes() for client in clients}) > 1
    _, clients = one_round(presets.mcm("raw", HALF), gradients, [0] * 12, step=1)
    assert len({client.point.tobytes() for client in clients}) == 1
    _, clients = one_round(presets.rand_mcm_groups("raw", HALF, groups=2), gradients, [0] * 12, step=1)
    assert clients[0].point.tobytes() == clients[2].point.tobytes() != clients[1].point.tobytes()


def test_averaged_memory_is_the_mean_of_the_clients() -> None:
    protocol = presets.rand_mcm_averaged("raw", HALF, reset_every=1000)
    server, clients, _ = play(protocol, 25, participation=0.5)
    held = np.mean([client.downlink.memory for client in clients], axis=0)
    assert np.allclose(server.downlink.memory, held, atol=1e-6)
    _, _, resets = play(presets.rand_mcm_averaged("raw", HALF, reset_every=5), 25)
    assert resets == 4 * 4  # after rounds 5, 10, 15 and 20, for each of 4 clients


def test_the_order_of_clients_does_not_change_the_averaged_memory() -> None:
    """H̄ moves after the round; while it moved between clients, those who came later were sent something else."""
    protocol = presets.rand_mcm_averaged("raw", HALF)
    results = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        server, clients = protocol.init(np.zeros(12, np.float32), 4)
        for k in range(30):  # 4√12 rounds is every 14th: resets are among them
            delivered = {}
            for i in order:
                delivered[i] = protocol.deliver(server, clients[i], seed=k)
                server = delivered[i].server
            frames = {}
            for i in range(4):
                gradient = delivered[i].client.point - np.float32(i)
                frames[i], clients[i] = protocol.respond(delivered[i].client, gradient, seed=k)
            server = protocol.advance(server, frames, 0.1, seed=k)
        results.append((server.model.tobytes(), server.downlink.memory.tobytes(), server.downlink.resets))
    assert results[0] == results[1]
    assert results[0][2] == 2


@pytest.mark.parametrize(
    "name", ["diana", "mcm", "artemis", "dore", "rand_mcm", "rand_mcm_groups", "rand_mcm_averaged"]
)
def test_memories_as_the_authors_have_them(name: str) -> None:
    """Each tensor at its own rate, memories from the first gradient on: everybody still converges."""
    rate = "alpha" if name in ("diana", "artemis", "dore") else "alpha_up"
    protocol = presets.protocol_of(name, "qsgd(7) | rans", **{rate: "tensor", "start": "first"})
    shapes = {"w": np.zeros((40, 30), np.float32), "b": np.zeros(5, np.float32)}
    server, clients = protocol.init(shapes, 3)
    start = None
    for k in range(60):
        frames = {}
        for i in range(3):
            got = protocol.deliver(server, clients[i], seed=k)
            server = got.server
            frames[i], clients[i] = protocol.respond(
                got.client, server.layout.unflatten(got.client.point - np.float32(i)), seed=k
            )
        server = protocol.advance(server, frames, 0.2, seed=k)
        start = start or len(frames[0])
    assert len(frames[0]) < start / 3  # only the first gradient was raw
    assert np.abs(server.model - 1).max() < 0.05


def test_memories_on_disk_give_the_same_run(tmp_path: Path) -> None:
    in_memory, _, _ = play(presets.rand_mcm(), 15, participation=0.6)
    on_disk, _, _ = play(presets.rand_mcm(folder=str(tmp_path)), 15, participation=0.6)
    assert in_memory.model.tobytes() == on_disk.model.tobytes()
    assert (
        list(tmp_path.iterdir()) == []
    )  # files without a name: nothing is left behind, and nobody's file is in the way


# --- catching up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", ["cheapest", "replay", "reset"])
@pytest.mark.parametrize("away", [1, 2, 5, 40])
def test_a_client_that_was_away_catches_up(catch_up: str, away: int) -> None:
    channel = Shifted(perbit.channels.Direct("qsgd(1, bucket=0) | rans"))
    protocol = Protocol.of("mcm", perbit.channels.Direct("raw"), Shared(channel, catch_up=catch_up, keep=30))  # type: ignore[arg-type]
    server, clients = protocol.init(np.zeros(300, np.float32), 2)
    rng = np.random.default_rng(0)
    for k in range(away):
        present = protocol.deliver(server, clients[0], seed=k).client
        response = protocol.respond(present, rng.normal(size=300).astype(np.float32), seed=k)
        server, clients[0] = protocol.advance(server, {0: response.frame}, 0.1, seed=k), response.client
    here, late = (protocol.deliver(server, client, seed=0) for client in clients)
    assert late.client.point.tobytes() == here.client.point.tobytes()
    assert late.client.downlink.memory[0].tobytes() == here.client.downlink.memory[0].tobytes()
    n_bytes = sum(map(len, late.frames))
    reset_bytes = len(channel.reset(server.downlink[0].before)) + len(late.frames[-1])
    assert late.was_reset == (away > 30 or (catch_up == "reset" and away > 1) or n_bytes >= reset_bytes)
    if catch_up == "cheapest":
        assert n_bytes <= reset_bytes


@pytest.mark.parametrize("away", [2, 3, 20])
def test_a_client_that_was_away_is_sent_what_it_lacks_in_one_frame(away: int) -> None:
    """Of a chain whose memory is the clients' model: one frame, and every further one brings it nearer to those in step."""
    protocol = presets.double_squeeze("raw", "topk(0.3)")
    assert isinstance(protocol.downlink, Followed)
    server, clients = protocol.init(np.zeros(300, np.float32), 2)
    rng = np.random.default_rng(0)
    lacking = []
    for k in range(away + 12):
        step = 0.1 if k < away else 1e-6  # then the chain nearly stands still
        late = clients if k >= away else clients[:1]
        sent = {}
        for client in late:
            delivered = protocol.deliver(server, client, seed=k)
            server, sent[client.index] = delivered.server, delivered.frames
            clients[client.index] = delivered.client
            assert not delivered.was_reset
        if k >= away:
            assert len(sent[1]) == 1
            assert len(sent[1][0]) < 1.1 * len(sent[0][0])
            lacking.append(float(np.linalg.norm(clients[1].point - clients[0].point)))
        frame, clients[0] = protocol.respond(clients[0], rng.normal(size=300).astype(np.float32), seed=k)
        server = protocol.advance(server, {0: frame}, step, seed=k)
    assert 0 < lacking[1] < lacking[0]
    assert lacking[-1] < 0.01 * lacking[0]


def test_absent_clients_count_as_their_memories() -> None:
    """With half of the clients, DIANA's estimate is h̄ + mean over those present of C(g - h): unbiased for all of them."""
    protocol = presets.diana("raw", alpha=1.0)
    server, clients = protocol.init(np.zeros(1, np.float32), 2)
    frames = {}
    for i, gradient in enumerate([2.0, 6.0]):
        frames[i], clients[i] = protocol.respond(clients[i], np.array([gradient], np.float32), seed=0)
    server = protocol.advance(server, frames, 1.0, seed=0)  # h = [2, 6], w = -4
    frame, _ = protocol.respond(clients[0], np.array([3.0], np.float32), seed=1)
    server = protocol.advance(server, {0: frame}, 1.0, seed=1)  # ĝ = 4 + (3 - 2) = 5
    assert server.model.tolist() == [-9]
    assert server.expected is not None
    assert server.expected.tolist() == [4.5]


def test_a_round_without_clients_is_refused() -> None:
    server, _ = presets.sgd().init(np.zeros(2, np.float32), 2)
    with pytest.raises(perbit.EncodeError, match="at least one client"):
        presets.sgd().advance(server, {}, 1.0, seed=0)


# --- theory helpers ---------------------------------------------------------------------------------------------------


def test_step_bounds_use_the_declared_omega() -> None:
    omega, n_clients, L = 10.0, 20, 3.0  # qsgd(1) on 100 values: √100
    layout = Layout.of(100)
    for name in ("diana", "artemis", "mcm", "ghost"):
        protocol = presets.PRESETS[name].make(*[presets.ONE_LEVEL] * (1 + presets.PRESETS[name].two_way))
        bound = {
            "diana": theory.step_unidirectional(L, n_clients, omega),
            "artemis": theory.step_degraded(L, n_clients, omega, omega),
            "mcm": theory.step_mcm(L, n_clients, omega, omega),
            "ghost": theory.step_ghost(L, n_clients, omega, omega),
        }[name]
        assert presets.step_bound(name, L, n_clients, layout, protocol) == pytest.approx(bound)
    # with large ω MCM may step further than Artemis, by about √ω
    big = 1e6
    gain = theory.step_mcm(1, 1, big, big) / theory.step_degraded(1, 1, big, big)
    assert gain == pytest.approx(np.sqrt(big) / (3 * np.sqrt(2)), rel=0.01)


def test_summed_is_used_where_updates_are_carried() -> None:
    for protocol, kind in ((presets.artemis(), Shared), (presets.double_squeeze(), Followed)):
        assert isinstance(protocol.downlink, kind)
        assert isinstance(protocol.downlink.channel, Summed)
