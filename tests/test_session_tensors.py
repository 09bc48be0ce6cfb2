"""Sessions: models of any tensors arrive as they are, counters and dtypes exactly; an answer may hold some of them only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perbit
from perbit.protocols import presets
from perbit.session import ClientSession, Model, ServerSession, protocol_of
from session_exchange import EACH_PRESET, exchange, is_same, kind, model, noisy, session, small, trained


def test_a_model_that_changes_its_tensors_is_sent_in_full() -> None:
    server, client = ServerSession(protocol_of(), seed=0), ClientSession()
    exchange(server, "c", client, model(1), None)
    other = {"v": np.arange(7, dtype=np.float32)}
    frame = server.send("c", other)
    assert kind(frame) == "FULL"
    assert np.array_equal(client.receive(frame)["v"], other["v"])
    with pytest.raises(perbit.EncodeError, match="names and shapes"):
        client.reply({"v": np.zeros(8, np.float32)})
    assert server.receive("c", client.reply(other)) is not None


def test_counters_keep_their_dtype_when_averaging_makes_floats_of_them() -> None:
    """As FedAvg does: an int64 counter comes back as float64. That is no reason to send everything, nor to send a float."""
    server, client = ServerSession(protocol_of(), seed=0), ClientSession()
    exchange(server, "c", client, {"w": np.ones(9, np.float32), "n": np.array(2**60 + 1)}, None)
    mean = np.array(123456789.4)  # not a float32
    got = exchange(server, "c", client, {"w": np.ones(9, np.float32), "n": mean}, lambda x: {**x, "n": x["n"] + 1})
    assert got is not None
    assert (got["n"].dtype, got["n"].item()) == (np.int64, 123456790)
    late = ClientSession()
    first = late.receive(server.send("late", {"w": np.ones(9, np.float32), "n": mean}))
    assert (first["n"].dtype, first["n"].item()) == (np.int64, 123456789)
    assert server.n_resyncs == 0


@pytest.mark.parametrize(
    ("agreed", "given", "expected"),
    [
        (np.array([3, 4], np.uint8), np.array([300.0, -7.0]), [255, 0]),
        (np.array([3, 4], np.int8), np.array([300, -300]), [127, -128]),
        (np.array([3, 4], np.int64), np.array([1e300, -1e300]), [2**63 - 1024, -(2**63)]),
        (np.array([True, False]), np.array([0.4, 0.6]), [False, True]),
    ],
)
def test_what_does_not_fit_the_agreed_dtype_is_the_nearest_that_does(agreed: Any, given: Any, expected: Any) -> None:
    server = ServerSession(protocol_of())
    server.publish({"w": np.ones(4, np.float32), "n": agreed})
    server.publish({"w": np.ones(4, np.float32), "n": given})
    assert (server.tensors["n"].dtype, server.tensors["n"].tolist()) == (agreed.dtype, expected)


def test_a_counter_that_is_not_finite_is_refused() -> None:
    server = ServerSession(protocol_of())
    server.publish({"w": np.ones(4, np.float32), "n": np.array(3)})
    with pytest.raises(perbit.EncodeError, match="'n' was agreed as int64, but is not finite"):
        server.publish({"w": np.ones(4, np.float32), "n": np.array(np.nan)})


@pytest.mark.parametrize("tensors", [{}, {"n": np.array(3)}, {"w": np.zeros((0, 4), np.float32)}])
@EACH_PRESET
def test_models_without_floats(name: str, tensors: dict[str, Any]) -> None:
    server, client = session(small(name)), ClientSession()
    for _ in range(2):
        got = exchange(server, "c", client, tensors, lambda x: x)
        assert got is not None
        assert {name: x.tolist() for name, x in got.items()} == {name: x.tolist() for name, x in tensors.items()}


def test_the_dtypes_of_the_first_model_hold() -> None:
    server, client = ServerSession(protocol_of()), ClientSession()
    for values in (np.ones(4, np.float16), np.full(4, 1e4, np.float32)):
        got = client.receive(server.send("a", {"w": values, "n": np.array(0.0)}))
        server.receive("a", client.reply())
        assert (got["w"].dtype, got["n"].dtype) == (np.float16, np.float64)
    np.testing.assert_allclose(got["w"], 1e4)


def test_models_are_values() -> None:
    tensors = model(1, 2)
    kept = Model.of(tensors)
    tensors["w"][:] = 9
    tensors["steps"][...] = 9
    assert kept.tensors()["w"].max() == 1
    assert kept.tensors()["steps"] == 2
    assert kept.same_as(Model.of(model(1, 2)))
    assert not kept.same_as(Model.of(model(1, 3)))
    kept.tensors()["steps"][...] = 5
    assert kept.tensors()["steps"] == 2


def test_exact_tensors_that_did_not_change_are_neither_sent_nor_kept_again() -> None:
    mask = np.random.default_rng(0).random(4000) < 0.5
    server, client = ServerSession(protocol_of("sgd"), 0), ClientSession()
    for steps in range(5):
        frame = server.send("c", {"w": np.full(9, steps, np.float32), "mask": mask.copy(), "steps": np.array(steps)})
        assert steps == 0 or len(frame) < 400
        got = client.receive(frame)
        assert np.array_equal(got["mask"], mask)
        assert got["steps"] == steps
        server.receive("c", client.reply())
    assert len(server._exact) == 5
    assert len({id(held["mask"]) for held in server._exact.values()}) == 1


def test_a_client_of_a_forgotten_version_is_sent_all_exact_tensors() -> None:
    server, client = ServerSession(protocol_of("federated"), 0), ClientSession()
    exchange(server, "c", client, noisy(0, steps=1), None)
    for i in range(1, 100):
        server.publish(noisy(i, steps=1 if i < 50 else i))
    got = client.receive(server.send("c", noisy(100, steps=1)))
    assert got["steps"] == 1
    assert got["mask"].tolist() == [True, False, True]


# --- what was agreed at the start -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["federated", "mcm", "diana", "rand_mcm", "double_squeeze"])
def test_an_optimiser_that_returns_float64_causes_no_second_full_frame(preset: str) -> None:
    server, client = ServerSession(protocol_of(preset), 0), ClientSession()
    first = {"w": noisy(0)["w"], "n": np.array(1)}
    wide = {"w": noisy(1)["w"].astype(np.float64), "n": np.array(1.0)}
    kinds = []
    for tensors in (first, wide, {**wide, "w": wide["w"] + 1}):
        frame = server.send("c", tensors)
        kinds.append(kind(frame))
        received = client.receive(frame)
        assert received["w"].dtype == np.float32
        got = server.receive("c", client.reply({"w": received["w"].astype(np.float64), "n": received["n"]}))
        assert got is not None
        assert got["w"].dtype == np.float32
        assert server.model(tensors).n_bytes == 4 * 1200 + 8  # plain bytes are those of what was agreed
    assert kinds == ["FULL", "DELTA", "DELTA"]


@pytest.mark.parametrize("preset", ["federated", "mcm", "rand_mcm"])
def test_a_reordered_model_is_the_same_model(preset: str) -> None:
    server, client = ServerSession(protocol_of(preset), 0), ClientSession()
    exchange(server, "c", client, noisy(0), None)
    backwards = dict(reversed(noisy(0).items()))
    assert kind(server.send("c", backwards)) == "UNCHANGED"
    assert kind(server.send("c", Model.of(backwards))) == "UNCHANGED"
    frame = server.send("c", dict(reversed(noisy(1).items())))
    assert kind(frame) == "DELTA"
    received = client.receive(frame)
    assert list(received) == list(noisy(0))
    got = server.receive("c", client.reply(dict(reversed(received.items()))))
    assert got is not None
    assert list(got) == list(noisy(0))


# --- answers with some of the tensors ---------------------------------------------------------------------------------------


def layers(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"body": (60, 50), "head": (30, 40), "bias": (30,)}
    return {**{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}, "n": np.array(seed)}


def changed(tensors: dict[str, Any], names: tuple[str, ...], rng: np.random.Generator) -> dict[str, Any]:
    return {
        name: tensors[name] + 1 if name == "n" else tensors[name] + rng.normal(size=tensors[name].shape) / 10
        for name in names
    }


ALL = ("body", "head", "bias", "n")
STORIES: dict[str, list[tuple[str, ...]]] = {
    "always the same": [("body", "n")] * 4,
    "one that changes": [("body",), ("head", "bias"), ("body", "head"), ("n",)],
    "back to all": [("body",), ALL, ("head",), ALL, ALL],
    "exact ones only": [("n",), ("n",)],
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("preset", ["federated", "diana", "mcm", "rand_mcm", "predicted_feedback"])
def test_partial_answers_are_coded_and_come_back_as_such(preset: str, story: str) -> None:
    server, client, rng = ServerSession(protocol_of(preset), 0), ClientSession(), np.random.default_rng(0)
    for i, names in enumerate(STORIES[story]):
        received = client.receive(server.send("c", layers(i)))
        trained = changed(received, names, rng)
        answer = client.reply(trained)
        plain = sum(x.size * 4 for name, x in trained.items() if name != "n")
        assert len(answer) < max(0.8 * plain, 400)
        got = server.receive("c", answer)
        assert got is not None
        assert set(got) == set(names)
        assert server.digest("c") == client.digest
        for name in names:
            assert got[name].shape == received[name].shape
            if name == "n":
                assert got[name] == trained[name]
    assert server.n_resyncs == 0


def test_after_an_evaluation_a_partial_client_is_still_one() -> None:
    server, client, rng = ServerSession(protocol_of(), 0), ClientSession(), np.random.default_rng(0)
    story: list[tuple[str, ...] | None] = [("body",), None, ("body",)]
    for i, names in enumerate(story):
        received = client.receive(server.send("c", layers(i)))
        got = server.receive("c", client.reply(changed(received, names, rng) if names else None))
        assert (None if got is None else tuple(got)) == names


def test_the_names_are_told_once() -> None:
    server, client, rng = ServerSession(protocol_of(up="topk(0.01)"), 0), ClientSession(), np.random.default_rng(0)
    sizes = []
    for i in range(3):
        received = client.receive(server.send("c", layers(i)))
        answer = client.reply(changed(received, ("body",), rng))
        server.receive("c", answer)
        sizes.append(len(answer))
    assert sizes[0] - sizes[1] >= len('["body"]')
    assert abs(sizes[1] - sizes[2]) < 10


def test_error_feedback_works_on_the_tensors_that_are_sent() -> None:
    """What top-k left out of a partial answer comes later: the sum of all that was received tends to the sum of all updates."""
    server, client = ServerSession(protocol_of(up="topk(0.2)", decay=1.0), 0), ClientSession()
    tensors, total = layers(0), np.zeros((60, 50), np.float32)
    wanted = np.random.default_rng(1).normal(size=(60, 50)).astype(np.float32)
    for _ in range(40):
        received = client.receive(server.send("c", tensors))
        got = server.receive("c", client.reply({"body": received["body"] + wanted}))
        assert got is not None
        total += got["body"] - tensors["body"]
    assert np.abs(total / 40 - wanted).mean() < 0.15 * np.abs(wanted).mean()
    single = np.sort(np.abs(wanted).ravel())[: int(0.8 * wanted.size)].sum() / np.abs(wanted).sum()
    assert single > 0.5  # what one frame alone leaves out


def test_partial_answers_with_memories_on_disk(tmp_path: Any) -> None:
    """Rows of the store are as long as the model; those of partial clients are not full."""
    runs = []
    for folder in (None, str(tmp_path)):
        server = ServerSession(presets.rand_mcm(folder=folder), 0)
        clients, rng, got = [ClientSession() for _ in range(7)], np.random.default_rng(0), []
        for i in range(4):
            for who, client in enumerate(clients):
                received = client.receive(server.send(who, layers(i)))
                names = (("body",), ("head", "n"), ALL)[(who + i // 2) % 3]
                got.append(server.receive(who, client.reply(changed(received, names, rng))))
                assert server.digest(who) == client.digest
        assert server.n_resyncs == 0
        runs.append(got)
    for a, b in zip(*runs, strict=True):
        assert a is not None
        assert b is not None
        assert is_same(a, b)


def test_answers_that_do_not_fit_are_refused_and_change_nothing() -> None:
    server, client = ServerSession(protocol_of(), 0), ClientSession()
    exchange(server, "c", client, noisy(0), None)
    received = client.receive(server.send("c", noisy(1)))
    for wrong in ({"x": received["w"]}, {}, {"w": received["w"][1:]}, {**received, "": received["w"]}):
        with pytest.raises(perbit.EncodeError):
            client.reply(wrong)
    with pytest.raises(perbit.EncodeError, match="exact"):
        client.reply(update={"w": received["w"], "b": received["b"]}, exact={"x": np.array(1)})
    with pytest.raises(perbit.EncodeError, match="exact"):
        client.reply(update={"w": received["w"], "b": received["b"]}, exact={"steps": np.array([1])})
    with pytest.raises(perbit.EncodeError, match="not both"):
        client.reply(received, update={"w": received["w"], "b": received["b"]})
    with pytest.raises(perbit.NonFiniteError):
        client.reply({"w": np.full_like(received["w"], np.nan)})
    assert server.receive("c", client.reply(trained(received, np.random.default_rng(0)))) is not None
    assert server.digest("c") == client.digest


def test_a_step_with_exact_tensors_that_the_model_lacks_changes_nothing() -> None:
    server, client = ServerSession(protocol_of("sgd"), 0), ClientSession()
    exchange(server, "c", client, noisy(0), lambda x: trained(x, np.random.default_rng(0)))
    for wrong in ({"x": np.array(1)}, {"steps": np.zeros(3, int)}, {"w": noisy(1)["w"]}):
        with pytest.raises(perbit.EncodeError, match="exact"):
            server.step(1.0, wrong)
    assert is_same(server.tensors, noisy(0))
    server.step(1.0, {"steps": np.array(8)})
    assert server.tensors["steps"] == 8
