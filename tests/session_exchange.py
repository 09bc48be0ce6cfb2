"""A model, its training and its exchange between a server's session and a client's, for tests of sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perbit import presets
from perbit.protocol import Protocol
from perbit.session import ClientSession, ResyncNeeded, ServerSession

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
