"""kill -9 of a ServerApp, for real: started again it goes on from its checkpoint, with the same nodes and hardly a byte more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flower_cluster import Cluster, wait_until
from flower_network import Network, app_of, messages, start
from perbit.engines.flower import CompressedGrid, perbit_mod
from perbit.engines.flower.records import GOODBYE, RUN

ROUNDS = 4


def config(result: Path, checkpoint: Path | str) -> str:
    values = {"result": result, "checkpoint": checkpoint}
    texts = " ".join(f'{name}="{value}"' for name, value in values.items())
    return f"{texts} rounds={ROUNDS} hidden=512 evaluate=false"


def command_of(process: psutil.Process) -> str:
    """Nothing, of one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def kill_server_app(superlink: int) -> None:
    """The SuperLink started it: find it among what that has started."""
    started = psutil.Process(superlink).children(recursive=True)
    found = [child for child in started if "serverapp" in command_of(child)]
    assert found
    for process in found:
        process.kill()
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "it is dead")  # noqa: B023


def sent(outcome: dict[str, Any]) -> int:
    return int(outcome["down_bytes"] + outcome["up_bytes"])


@pytest.mark.slow
def test_a_server_app_that_is_killed_goes_on(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        for name, partition in (("one", 0), ("two", 1)):
            cluster.node(name, partition)
            cluster.wait_for_node(name)
        app, gate = cluster.gated_app(), tmp_path / "gate"

        def run(name: str, checkpoint: str, last: int, n_gates: int) -> None:
            for path in gate.iterdir():
                path.unlink()
            cluster.run("flwr", "run", str(app), "loop", "--run-config", config(tmp_path / f"{name}.json", checkpoint))
            for number in range(1, last):
                cluster.wait_for_gate(number)
                cluster.go(number)
            cluster.wait_for_gate(last)
            if last == n_gates:
                cluster.go(last)
                wait_until((tmp_path / f"{name}.json").exists, f"the run {name} ends")

        run("whole", "", ROUNDS + 1, ROUNDS + 1)
        whole = json.loads((tmp_path / "whole.json").read_text())
        cluster.wait_for_the_end()

        folder = str(tmp_path / "checkpoint")
        run("killed", folder, 3, ROUNDS + 1)  # two rounds are done, the third waits
        before = json.loads((gate / "traffic-3").read_text())
        kill_server_app(cluster.processes[0].pid)
        run("again", folder, ROUNDS - 2 + 1, ROUNDS - 2 + 1)
        after = json.loads((tmp_path / "again.json").read_text())

        assert after["n_resyncs"] == 0
        assert sent(before) + sent(after) <= 1.1 * sent(whole)
        assert after["accuracy"][-1] > whole["accuracy"][-1] - 0.03
        cluster.wait_for_the_end()
        print(
            f"whole {sent(whole)} bytes, killed {sent(before)} + {sent(after)}; {whole['accuracy']} {after['accuracy']}"
        )


def stop_in_a_round(grid: CompressedGrid, moment: str) -> None:
    """Go on with a round as far as the moment at which the server is killed."""
    if moment == "between rounds":
        return
    sent = list(grid.push_messages(messages(1, 2, value=1)))
    n_taken = {"sent": 0, "one answer taken": 1, "all answers taken": 2}[moment]
    assert len(list(grid.pull_messages(sent[:n_taken]))) == n_taken


@pytest.mark.parametrize("moment", ["between rounds", "sent", "one answer taken", "all answers taken"])
def test_a_grid_made_anew_goes_on_with_the_same_nodes(moment: str, tmp_path: Path) -> None:
    """In one process: the second grid has a run of another number, but the nodes are told under which secret they began."""
    network = Network(app_of(perbit_mod(tmp_path / "nodes")))
    grid = CompressedGrid(network, folder=tmp_path / "server")
    start(grid, rounds=3)
    stop_in_a_round(grid, moment)
    model = grid.session.tensors
    grid.session.close()
    grid._members.clear()  # no goodbye, as from a process that was killed
    for node, context in network.contexts.items():
        network.contexts[node] = type(context)(8, node, context.node_config, context.state, context.run_config)
    with CompressedGrid(network, folder=tmp_path / "server") as grid:
        assert all((grid.session.tensors[name] == model[name]).all() for name in model)
        network.down_bytes.clear()
        replies = list(grid.send_and_receive(messages(1, 2, value=1), timeout=5))
        assert all(reply.has_content() for reply in replies)
        assert grid.session.n_resyncs == 0
        assert max(network.down_bytes) < 5000  # 9600 bytes is the whole model
    assert not (tmp_path / "server").exists()
    assert not list((tmp_path / "nodes").iterdir())


def test_a_run_that_fails_keeps_its_folder(tmp_path: Path) -> None:
    network = Network(app_of(perbit_mod(tmp_path / "nodes")))

    def fail() -> None:
        with CompressedGrid(network, folder=tmp_path / "server") as grid:
            list(grid.send_and_receive(messages(1), timeout=5))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert CompressedGrid(network, folder=tmp_path / "server").session.has_model


def test_another_server_app_cannot_name_what_a_node_keeps_of_this_run(tmp_path: Path) -> None:
    """A goodbye of another run deletes nothing: not by the run's number, nor by what the folders are called."""
    network = Network(app_of(perbit_mod(tmp_path / "nodes")))
    grid = CompressedGrid(network, folder=tmp_path / "server")
    start(grid, rounds=1)
    kept = sorted((tmp_path / "nodes").rglob("*.npz"))
    assert kept
    runs = {context.run_id for context in network.contexts.values()}
    names = {path.parent.name.split("-")[0] for path in kept}
    for node, context in network.contexts.items():
        network.contexts[node] = type(context)(8, node, context.node_config, context.state, context.run_config)
    for guess in (*runs, *names, "0" * 32, "../nodes"):
        told = {GOODBYE: ConfigRecord(), RUN: ConfigRecord({"id": guess, "secret": guess})}
        list(
            network.send_and_receive([Message(RecordDict(told), node, "train") for node in network.contexts], timeout=5)
        )
    assert sorted((tmp_path / "nodes").rglob("*.npz")) == kept
    grid.close()
    assert not list((tmp_path / "nodes").iterdir())
