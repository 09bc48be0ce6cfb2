"""The Flower engine: whatever is lost, damaged, old, diverged or without the mod is healed or left out, and both ends stay in step."""

# ruff: noqa: F401, F811 - fixtures are imported to be found by their names

from __future__ import annotations

import copy
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

import perbit
from flower_network import TARGET, Network, app_of, assert_in_step, messages, network, start
from perbit.engines.flower import CompressedGrid, perbit_mod
from perbit.engines.flower.records import find_frame, framed, to_record, with_record


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_lost_state_is_resynchronised(
    harm: str, network: Network, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = CompressedGrid(network)
    start(grid, rounds=1)
    for path in (tmp_path / "7-1").glob("*.npz"):
        path.unlink() if harm == "lost" else path.write_bytes(path.read_bytes()[:-50])
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING):
        replies = list(grid.send_and_receive(messages(1, 2, value=3), timeout=5))
    assert [reply.has_content() for reply in replies] == [True, True]
    assert {reply.metadata.reply_to_message_id for reply in replies} <= {str(i) for i in range(99)}
    assert grid.traffic.n_resyncs == 1
    assert "resync of node 1" in caplog.text
    assert_in_step(grid, tmp_path)


def test_pushing_and_pulling_by_hand_hides_a_resync(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    start(grid, rounds=1)
    shutil.rmtree(tmp_path / "7-2")
    pushed = list(grid.push_messages(messages(1, 2, value=3)))
    first = list(grid.pull_messages(pushed))
    second = list(grid.pull_messages(pushed))
    assert [reply.metadata.src_node_id for reply in (*first, *second)] == [1, 2]
    assert [reply.metadata.reply_to_message_id for reply in (*first, *second)] == pushed
    assert_in_step(grid, tmp_path)


def test_a_damaged_answer_drops_that_client_only(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    start(grid, rounds=1)

    def damage(reply: Message) -> Message:
        if reply.metadata.src_node_id == 1 and (found := find_frame(reply.content)):
            bent = bytearray(found.frame)
            bent[len(bent) // 2] ^= 1
            reply.content = with_record(reply.content, found.record, framed(bytes(bent)))
        return reply

    network.on_the_way = damage
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages(1, 2, value=9), timeout=5)}
    assert "DecodeError" in replies[1].error.reason
    assert replies[2].content["arrays"]["w"].numpy().shape == (40, 60)
    assert grid.traffic.n_dropped == 1
    network.on_the_way = lambda reply: reply
    result = start(grid, rounds=1)
    assert result.arrays is not None
    assert_in_step(grid, tmp_path)


def test_an_old_answer_is_left_out_and_costs_nothing(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    kept: list[Message] = []
    network.on_the_way = lambda reply: kept.append(copy.deepcopy(reply)) or reply  # type: ignore[func-returns-value]
    list(grid.send_and_receive(messages(1), timeout=5))
    old = next(message for message in kept if message.has_content())

    def replay(reply: Message) -> Message:
        reply.content = old.content
        return reply

    network.on_the_way = replay
    (left_out,) = grid.send_and_receive(messages(1, value=1), timeout=5)
    assert "StaleAnswer" in left_out.error.reason
    assert (grid.traffic.n_stale, grid.traffic.n_dropped) == (1, 0)
    network.on_the_way = lambda reply: reply
    (reply,) = grid.send_and_receive(messages(1, value=2), timeout=5)
    assert reply.has_content()
    assert grid.traffic.n_resyncs == 0
    assert_in_step(grid, tmp_path, [1])


def test_an_answer_that_is_lost_has_not_happened(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1, 2), timeout=5))
    network.on_the_way = lambda reply: None if reply.metadata.src_node_id == 1 else reply
    replies = list(grid.send_and_receive(messages(1, 2, value=1), timeout=0.2))
    assert [reply.metadata.src_node_id for reply in replies] == [2]
    network.on_the_way = lambda reply: reply
    replies = list(grid.send_and_receive(messages(1, 2, value=2), timeout=5))
    assert len(replies) == 2
    assert grid.traffic.n_resyncs == 0  # node 1 had moved on, but knows where it was before
    assert_in_step(grid, tmp_path)


def test_an_app_that_fails_stays_in_step(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1), timeout=5))
    working, network.app = network.app, ClientApp(mods=[perbit_mod(tmp_path)])  # without any function
    (failed,) = grid.send_and_receive(messages(1, value=1), timeout=5)
    assert failed.has_error()
    assert grid.traffic.n_dropped == 1
    network.app = working
    (reply,) = grid.send_and_receive(messages(1, value=2), timeout=5)
    assert reply.has_content()
    assert grid.traffic.n_resyncs == 0


def test_a_diverged_client_is_left_out(tmp_path: Path) -> None:
    def diverge(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_id == 1 and "arrays" in reply.content:
            reply.content["arrays"] = to_record({"w": TARGET * np.float32("nan"), "steps": np.array(1)})
        return reply

    grid = CompressedGrid(Network(app_of(perbit_mod(tmp_path), diverge)))
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages(1, 2), timeout=5)}
    assert "NaN" in replies[1].error.reason
    assert replies[2].has_content()
    assert grid.traffic.n_dropped == 1


def test_a_client_without_the_mod_is_told(network: Network) -> None:
    network.app = app_of()
    replies = list(CompressedGrid(network).send_and_receive(messages(1), timeout=5))
    assert replies[0].has_error()
    (asked,) = messages(2, kind="query")
    (reply,) = CompressedGrid(network).send_and_receive([asked], timeout=5)
    assert "perbit_mod" in reply.error.reason


def test_a_client_that_cannot_be_helped_is_left_out(network: Network) -> None:
    grid = CompressedGrid(network)
    asking = perbit.session.envelope.ask_for_resync(b"", "never content")

    def ask(reply: Message) -> Message:
        reply.content = RecordDict({"perbit": framed(asking)})
        return reply

    network.on_the_way = ask
    (reply,) = grid.send_and_receive(messages(1), timeout=5)
    assert "never content" in reply.error.reason
    assert (grid.traffic.n_resyncs, grid.traffic.n_dropped) == (2, 1)
