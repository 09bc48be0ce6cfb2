"""A ServerApp for tests: the example's, with a gate before each round, and hands that meddle with answers on the way.

It is copied into the example as digits_app/gated_app.py. The gate is a folder: `ready-N` appears before round N, with the digests of
what the server thinks its nodes hold, and the round waits for `go-N`; the last gate is after the last round. If `go-N` says "replay 7",
node 7's answer in that round is replaced by its first one; "damage 7" damages it. "die pushed" kills this process within the round, as
kill -9 does: when the first message was pushed ("one-pushed"), all were ("pushed"), answers have arrived that nobody has looked at
("answered"), or all were taken, and there is no new model yet ("taken"). What went until then is in `traffic-dead`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
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
last_moment: list[str] = []
grids: list[Any] = []  # perbit's, once it is there


class GatedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that waits for the test."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        orders.clear()
        orders.update(wait_at_gate(server_round, grid))
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        die_at("taken")
        return super().aggregate_train(server_round, replies)

    def start(self, grid: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().start(grid, *args, **kwargs)
        wait_at_gate(kwargs["num_rounds"] + 1, grid)
        return result


def wait_at_gate(number: int, grid: Any) -> dict[int, str]:
    """What the test orders for each node."""
    grids[:] = [grid]
    members = set(grid._members)
    digests = {node: (grid.session.digest(node) or b"").hex() for node in members}
    (GATE / f"traffic-{number}").write_text(json.dumps(vars(grid.traffic)))
    new = GATE / "reached"
    new.write_text(json.dumps(digests))
    new.rename(GATE / f"ready-{number}")
    while not (go := GATE / f"go-{number}").exists():
        time.sleep(0.05)
    while not members <= set(grid.get_node_ids()):  # on a busy machine nodes are taken for gone, and come back
        time.sleep(0.5)
    said = [line.split() for line in go.read_text().splitlines()]
    last_moment[:] = [about for order, about in said if order == "die"]
    return {int(about): order for order, about in said if order != "die"}


def die_at(moment: str) -> None:
    if last_moment == [moment]:
        (GATE / "traffic-dead").write_text(json.dumps(vars(grids[0].traffic)))
        os.kill(os.getpid(), signal.SIGKILL)


def meddled(reply: Message) -> Message:
    node = reply.metadata.src_node_id
    found = find_frame(reply.content) if reply.has_content() else None
    if found is None:
        return reply
    content = first_answers.setdefault(node, reply.content)
    if orders.get(node) == "replay":
        reply.content = content
    if orders.get(node) == "damage":
        bent = bytearray(found.frame)
        bent[len(bent) // 2] ^= 1
        reply.content = with_record(reply.content, found.record, framed(bytes(bent)))
    return reply


@app.main()
def main(grid: Grid, context: Context) -> None:
    from digits_app.server_app import run  # beside this file once it is in its place

    # a file of its own: what `flwr run --stream` shows may stop coming on a busy machine
    logging.getLogger("flwr").addHandler(logging.FileHandler(GATE.parent / "server.log"))

    push, pull = grid.push_messages, grid.pull_messages

    def pushed(messages: Any) -> Any:
        numbers = push(messages)
        die_at("one-pushed")
        return numbers

    def pulled(numbers: Any) -> Any:
        die_at("pushed")
        replies = [meddled(reply) for reply in pull(numbers)]
        if replies:
            die_at("answered")
        return replies

    grid.push_messages, grid.pull_messages = pushed, pulled  # type: ignore[method-assign]
    run(grid, dict(context.run_config), GatedFedAvg)
