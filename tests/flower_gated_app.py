"""A ServerApp for tests: the example's, with a gate before each round, and hands that meddle with answers on the way.

It is copied into the example as digits_app/gated_app.py. The gate is a folder: `ready-N` appears before round N, which waits
for `go-N`. If `go-N` says "replay 7", node 7's answer in that round is replaced by its first one; "tamper 7" damages it.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from perbit.engines.flower.records import find_frame, framed, with_record

GATE = Path(os.environ.get("PERBIT_TEST_GATE", "."))
app = ServerApp()
orders: dict[int, str] = {}
first_answers: dict[int, Any] = {}


class GatedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that waits for the test."""

    def configure_train(self, server_round: int, *args: Any, **kwargs: Any) -> Any:
        (GATE / f"ready-{server_round}").touch()
        while not (go := GATE / f"go-{server_round}").exists():
            time.sleep(0.05)
        orders.clear()
        for line in go.read_text().splitlines():
            order, node = line.split()
            orders[int(node)] = order
        return super().configure_train(server_round, *args, **kwargs)


def meddled(reply: Message) -> Message:
    node = reply.metadata.src_node_id
    found = find_frame(reply.content) if reply.has_content() else None
    if found is None:
        return reply
    content = first_answers.setdefault(node, reply.content)
    if orders.get(node) == "replay":
        reply.content = content
    if orders.get(node) == "tamper":
        bent = bytearray(found.frame)
        bent[len(bent) // 2] ^= 1
        reply.content = with_record(reply.content, found.record, framed(bytes(bent)))
    return reply


@app.main()
def main(grid: Grid, context: Context) -> None:
    from digits_app.server_app import run  # beside this file once it is in its place

    # a file of its own: what `flwr run --stream` shows may stop coming on a busy machine
    logging.getLogger("flwr").addHandler(logging.FileHandler(GATE.parent / "server.log"))

    pull = grid.pull_messages
    grid.pull_messages = lambda ids: [meddled(reply) for reply in pull(ids)]  # type: ignore[method-assign]
    run(grid, dict(context.run_config), GatedFedAvg)
