"""A model, its training and its exchange between a server's session and a client's, for tests of sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perbit.protocols import presets
from perbit.protocols.downlinks import Start
from perbit.protocols.protocol import Protocol
from perbit.session import ClientSession, ResyncNeeded, ServerSession
from perbit.session.envelope import Kind, WayDown, opened

SENDABLE = [name for name in presets.PRESETS if name != "ghost"]
EACH_PRESET = pytest.mark.parametrize("name", SENDABLE)


def small(name: str) -> Protocol:
    """A preset with parameters that show something in a few rounds."""
    if name == "deep_gradient_compression":
        return presets.protocol_of(name, up="topk(0.3)", warmup_rounds=2)
    more: dict[str, Any] = {"reset_every": 3} if name == "rand_mcm_averaged" else {}
    return presets.protocol_of(name, **more)


def session(protocol: Protocol, seed: int | None = 0, **more: Any) -> ServerSession:
    """A server's session; a protocol that must know how many clients there are is told four."""
    known: dict[str, Any] = {"population": 4} if protocol.name == "rand_mcm_averaged" else {}
    return ServerSession(protocol, seed, **{**known, **more})


def model(value: float = 0.0, steps: int = 0) -> dict[str, Any]:
    """A matrix that is coded, a vector that is small, and two tensors that stay exact."""
    return {
        "w": np.full((40, 30), value, np.float32),
        "b": np.full(5, -value, np.float64),
        "steps": np.array(steps, np.int64),
        "mask": np.array([True, False, True]),
    }


def noisy(seed: int, steps: int = 0) -> dict[str, Any]:
    """A model whose matrix has no pattern."""
    drawn = np.random.default_rng(seed).normal(size=(40, 30)).astype(np.float32)
    return {**model(seed / 10, steps), "w": drawn}


def trained(tensors: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A step towards ones, with noise; the counter counts."""
    moved = {
        name: (x + 0.3 * (1 - x) + 0.01 * rng.normal(size=x.shape)).astype(x.dtype)
        for name, x in tensors.items()
        if x.dtype.kind == "f"
    }
    return {**tensors, **moved, "steps": tensors["steps"] + 1}


def exchange(server: ServerSession, name: Any, client: ClientSession, tensors: Any, step: Any) -> dict[str, Any] | None:
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


def kind(frame: bytes) -> str:
    return opened(frame).kind.name


def start(frame: bytes) -> Start:
    """From where a client is to apply a DELTA."""
    message = opened(frame)
    assert message.kind == Kind.DELTA
    return WayDown.read(message.body).start


def is_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Bit for bit the same tensors."""
    return list(a) == list(b) and all(a[name].dtype == b[name].dtype for name in a) and _bytes(a) == _bytes(b)


def _bytes(tensors: dict[str, Any]) -> list[bytes]:
    return [np.ascontiguousarray(x).tobytes() for x in tensors.values()]
