"""A client that comes back after m rounds is sent no more bytes than version 0.1 sent it, when every client had a model of its own at the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perbit.protocols import presets
from perbit.session import ClientSession, ServerSession

ROUNDS_AWAY = (1, 2, 3, 5, 10, 20, 40, 49)
SENT_BY_0_1 = {  # bytes of the message, measured with version 0.1 by this very game
    "federated": (3011, 4866, 6259, 7916, 11468, 12368, 14956, 15955),
    "fedavg_topk_ef": (23451, 23450, 23449, 23446, 23453, 23449, 23447, 23449),
}
PROTOCOLS = {
    "federated": presets.federated(
        "topk(0.05) | uniform(4) | rans", "uniform(4) | rans"
    ),  # what it then was by default
    "fedavg_topk_ef": presets.fedavg_topk_ef(),
}


def bytes_after(protocol: str, away: int) -> int:
    rng = np.random.default_rng(0)
    model: Any = {"w": (0.05 * rng.normal(size=(100, 500))).astype(np.float32), "b": np.zeros(100, np.float32)}
    rng = np.random.default_rng(1)
    server, clients = ServerSession(PROTOCOLS[protocol], seed=0), (ClientSession(), ClientSession())

    def exchange(i: int) -> tuple[int, Any]:
        frame = server.send(i, model)
        noisy = {
            name: (0.95 * x + 0.003 * rng.normal(size=x.shape).astype(np.float32)).astype(np.float32)
            for name, x in clients[i].receive(frame).items()
        }
        return len(frame), server.receive(i, clients[i].reply(noisy))

    _, after = exchange(0)
    exchange(1)
    for k in range(away):
        model = after
        _, after = exchange(0)
        if k == away - 1:
            n_bytes, _ = exchange(1)
    return n_bytes


@pytest.mark.parametrize("protocol", SENT_BY_0_1)
def test_a_client_that_comes_back_costs_no_more_than_before(protocol: str) -> None:
    now = [bytes_after(protocol, away) for away in ROUNDS_AWAY]
    assert all(n_bytes <= before for n_bytes, before in zip(now, SENT_BY_0_1[protocol], strict=True)), now
