"""kill -9 of a ServerApp, for real: started again it goes on from its checkpoint, with the same nodes and hardly a byte more."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


def server_apps(superlink: int) -> list[psutil.Process]:
    """The SuperLink starts them: they are among what it has started."""
    started = psutil.Process(superlink).children(recursive=True)
    return [child for child in started if "serverapp" in command_of(child) and not has_ended(child)]


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def sent(outcome: dict[str, Any]) -> int:
    return int(outcome["down_bytes"] + outcome["up_bytes"])


class Runs:
    """Of one ServerApp after the other, on a cluster with two nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.app, self.gate = cluster, cluster.gated_app(), cluster.folder / "gate"
        for name, partition in (("one", 0), ("two", 1)):
            cluster.node(name, partition)
            cluster.wait_for_node(name)
        self.whole = self.run_to_its_end("whole", "", ROUNDS)

    def start(self, name: str, checkpoint: str, rounds: int) -> None:
        """Start a run, and let it do so many rounds."""
        for path in self.gate.iterdir():
            path.unlink()
        outcome = self.cluster.folder / f"{name}.json"
        self.cluster.run("flwr", "run", str(self.app), "loop", "--run-config", config(outcome, checkpoint))
        for number in range(1, rounds + 1):
            self.cluster.wait_for_gate(number)
            self.cluster.go(number)
        self.cluster.wait_for_gate(rounds + 1)

    def run_to_its_end(self, name: str, checkpoint: str, rounds: int) -> dict[str, Any]:
        self.start(name, checkpoint, rounds)
        self.cluster.go(rounds + 1)
        outcome = self.cluster.folder / f"{name}.json"
        wait_until(outcome.exists, f"the run {name} ends")
        self.cluster.wait_for_the_end()
        found: dict[str, Any] = json.loads(outcome.read_text())
        return found

    def kill(self, number: int, moment: str) -> dict[str, Any]:
        """kill -9 before this round or within it; what went until then."""
        superlink = self.cluster.processes[0].pid
        if moment == "before":
            traffic = self.gate / f"traffic-{number}"
            for process in server_apps(superlink):
                process.kill()
        else:
            traffic = self.gate / "traffic-dead"
            self.cluster.go(number, f"die {moment}")
            wait_until(traffic.exists, f"the ServerApp is {moment}")
        wait_until(lambda: not server_apps(superlink), "it is dead")
        found: dict[str, Any] = json.loads(traffic.read_text())
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield Runs(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "one-pushed", "pushed", "answered", "taken"])
def test_a_server_app_that_is_killed_goes_on(moment: str, runs: Runs) -> None:
    n_done = ROUNDS - 2
    folder = str(runs.cluster.folder / f"checkpoint-{moment}")
    runs.start(f"killed-{moment}", folder, n_done)
    before = runs.kill(n_done + 1, moment)
    after = runs.run_to_its_end(f"again-{moment}", folder, ROUNDS - n_done)
    print(
        f"killed {moment}: {sent(before)} + {sent(after)} bytes, whole {sent(runs.whole)}: "
        f"{(sent(before) + sent(after)) / sent(runs.whole):.3f}; {after['accuracy']} of {runs.whole['accuracy']}"
    )
    assert after["n_resyncs"] == 0
    assert sent(before) + sent(after) <= 1.1 * sent(runs.whole)
    assert after["accuracy"][-1] > runs.whole["accuracy"][-1] - 0.03


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
