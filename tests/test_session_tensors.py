"""Sessions: models of any tensors arrive as they are, counters and dtypes exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perbit
from perbit.session import ClientSession, Model, ServerSession, protocol_of
from session_exchange import exchange, model


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


def test_minus_zero_and_new_dtypes_arrive() -> None:
    server, client = ServerSession(protocol_of()), ClientSession()
    models = [
        {"w": np.ones(4, np.float16), "n": np.array(0)},
        {"w": np.ones(4, np.float16), "n": np.array(0.0)},
        {"w": np.ones(4, np.float16), "n": np.array(-0.0)},
        {"w": np.full(4, 1e5, np.float32), "n": np.array(-0.0)},
    ]
    for model in models:  # noqa: F402
        got = client.receive(server.send("a", model))
        server.receive("a", client.reply())
        assert got["n"].tobytes() == model["n"].tobytes()
    np.testing.assert_allclose(got["w"], 1e5)


def test_models_are_values() -> None:
    tensors = model(1, 2)
    kept = Model.of(tensors)
    tensors["w"][:] = 9
    tensors["steps"][...] = 9
    assert kept.tensors()["w"].max() == 1
    assert kept.tensors()["steps"] == 2
    assert kept.same_as(Model.of(model(1, 2)))
    assert not kept.same_as(Model.of(model(1, 3)))
