"""The Flower example for real: in Flower's simulation, and as processes on loopback with TLS, trouble included."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from threadpoolctl import threadpool_limits

from flower_cluster import EXAMPLE, Cluster, environment, wait_until

ROUNDS, HIDDEN = 3, 512


@pytest.fixture(scope="module")
def plain_accuracy() -> float:
    """What the example reaches in as many rounds without perbit: federated averaging of the same training."""
    task: dict[str, Any] = {"__name__": "task"}
    exec((EXAMPLE / "digits_app" / "task.py").read_text(), task)
    model = task["make_model"](HIDDEN)
    for _ in range(ROUNDS):
        trained = [dict(model), dict(model)]
        with threadpool_limits(1):
            for node in (0, 1):
                task["train"](trained[node], *task["load_data"](node, 2), 3, 0.05)
        model = {name: ((trained[0][name] + trained[1][name]) / 2).astype(model[name].dtype) for name in model}
    return float(task["accuracy"](model, *task["load_test_data"]()))


def check_outcome(path: Path, plain_accuracy: float) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(path.read_text())
    noise = np.sqrt(plain_accuracy * (1 - plain_accuracy) / 359)  # of a share of the 359 test images
    assert outcome["accuracy"][ROUNDS] > plain_accuracy - 3 * noise
    assert outcome["plain_up_bytes"] >= 40 * outcome["up_bytes"]
    assert outcome["n_dropped"] == 0
    return outcome


def run_config(path: Path, **more: Any) -> str:
    config = {"result": f'"{path}"', "rounds": ROUNDS, "hidden": HIDDEN, "evaluate": "false", **more}
    return " ".join(f"{name}={value}" for name, value in config.items())


def test_simulation(tmp_path: Path, plain_accuracy: float) -> None:
    with Simulation(tmp_path) as env:
        command = ["flwr", "run", str(EXAMPLE), "local", "--stream", "--federation-config", "num-supernodes=2"]
        config = run_config(tmp_path / "result.json", evaluate="true")
        done = subprocess.run([*command, "--run-config", config], env=env, capture_output=True, text=True, timeout=900)
    assert (tmp_path / "result.json").exists(), done.stdout + done.stderr
    outcome = check_outcome(tmp_path / "result.json", plain_accuracy)
    assert outcome["n_resyncs"] == 0
    assert not list((tmp_path / "state").iterdir())
    # evaluation brings each model; the training that follows sends a few bytes: 2 x (1 full + 3 deltas) in all
    assert outcome["down_bytes"] < outcome["plain_down_bytes"] / 4


class Simulation:
    """`flwr run . local` leaves a SuperLink running; this ends it, by its id."""

    def __init__(self, folder: Path) -> None:
        self.env = environment(folder)

    def __enter__(self) -> dict[str, str]:
        return self.env

    def __exit__(self, *_: object) -> None:
        left = processes_of(self.env["FLWR_HOME"])
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=60)


def processes_of(flwr_home: str) -> list[psutil.Process]:
    """Those that were started with this home: every test has its own."""
    return [process for process in psutil.process_iter() if _environ(process).get("FLWR_HOME") == flwr_home]


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def test_deployment_by_the_examples_script(tmp_path: Path, plain_accuracy: float) -> None:
    env = {**environment(tmp_path), "KEEP": str(tmp_path / "kept")}
    command = [str(EXAMPLE / "deploy.sh"), run_config(tmp_path / "result.json")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = check_outcome(tmp_path / "result.json", plain_accuracy)
    assert not list((tmp_path / "state").iterdir())  # made by the nodes, and deleted when the run was over
    assert outcome["n_resyncs"] == 0
    assert "perbit: down" in done.stdout
    wait_until(lambda: not processes_of(f"{tmp_path}/kept/flwr"), "all processes have ended")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as running:
        yield running


def test_deployment_survives_kills_lost_files_replays_and_damage(cluster: Cluster) -> None:
    """Five rounds over TLS with authenticated nodes; every byte passes a counting proxy."""
    a, b = cluster.node("a", 0), cluster.node("b", 1)
    check_refusals(cluster)
    for name in "ab":
        cluster.wait_for_node(name)
    node_a, node_b = cluster.node_id("a"), cluster.node_id("b")
    result = cluster.folder / "result.json"
    config = run_config(result, rounds=5, hidden=256)
    cluster.start("run", "flwr", "run", str(cluster.gated_app()), "loop", "--stream", "--run-config", config)
    cluster.wait_for_gate(1)
    cluster.go(1)

    cluster.wait_for_gate(2)
    cluster.kill(a)
    cluster.restart("a", 0)
    assert cluster.node_id("a") == node_a  # its key is its identity, so its file is found again
    cluster.go(2)

    cluster.wait_for_gate(3)
    (lost,) = (cluster.folder / "state").glob(f"*-{node_b}")
    shutil.rmtree(lost)
    cluster.go(3, f"replay {node_a}")

    cluster.wait_for_gate(4)
    cluster.wait_for_log("server", f"resync of node {node_b}")
    cluster.wait_for_log("server", f"an answer of node {node_a} is left out")
    assert f"resync of node {node_a}" not in cluster.log("server")
    cluster.go(4, f"damage {node_b}")

    cluster.wait_for_gate(5)
    cluster.wait_for_log("server", "the checksum does not match")
    cluster.go(5)

    digests = cluster.wait_for_gate(6)
    assert {int(node) for node in digests} == {node_a, node_b}
    assert cluster.held() == digests
    cluster.go(6)
    wait_until(result.exists, "the run ends")
    cluster.wait_for_the_end()
    check_the_end(cluster, json.loads(result.read_text()))
    assert b.poll() is None


@pytest.mark.slow
def test_a_memory_of_80_million_parameters_survives(cluster: Cluster) -> None:
    """Three rounds with Flower's default isolation: each message has a process of its own, so only the files remember."""
    cluster.node("a", 0)
    cluster.wait_for_node("a")
    result = cluster.folder / "result.json"
    config = run_config(result, hidden=8912, **{"min-nodes": 1, "local-epochs": 1, "timeout": 3000})
    cluster.start("run", "flwr", "run", str(cluster.gated_app()), "loop", "--stream", "--run-config", config)
    for number in range(1, ROUNDS + 1):
        cluster.go(number)
    digests = cluster.wait_for_gate(ROUNDS + 1, seconds=3000)
    (folder,) = (cluster.folder / "state").iterdir()
    newest = max(folder.glob("state-*.npz"), key=lambda path: path.stat().st_mtime)
    assert newest.stat().st_size > 2 * 4 * 80_000_000  # the model held, and the error memory
    assert cluster.held() == digests
    cluster.go(ROUNDS + 1)
    wait_until(result.exists, "the run ends")
    cluster.wait_for_the_end()
    outcome = json.loads(result.read_text())
    assert (outcome["n_resyncs"], outcome["n_dropped"]) == (0, 0)
    assert outcome["plain_up_bytes"] > 3 * 4 * 80_000_000 > 40 * outcome["up_bytes"]


def check_the_end(cluster: Cluster, outcome: dict[str, Any]) -> None:
    assert (outcome["n_resyncs"], outcome["n_dropped"], outcome["n_stale"]) == (
        1,
        1,
        1,
    )  # a damaged answer is as good as lost
    assert outcome["accuracy"][-1] > 0.9
    wire = {name: sum(getattr(proxy, name) for proxy in cluster.proxies) for name in ("up_bytes", "down_bytes")}
    print(f"payload up {outcome['up_bytes']} down {outcome['down_bytes']}; on the wire {wire}")
    for name, n_bytes in wire.items():
        assert n_bytes > outcome[name]
    assert wire["up_bytes"] < outcome["plain_up_bytes"]


def check_refusals(cluster: Cluster) -> None:
    """Nobody gets in whose key was not registered, and nobody talks to a SuperLink it has no reason to trust."""
    cluster.make_certificates("other-")
    cluster.node("unregistered", 0, register=False)
    cluster.node("deceived", 0, ca="other-ca.crt")
    deceived = cluster.proxies[-1]
    cluster.wait_for_log("superlink", "No SuperNode found with the given public key")
    cluster.wait_for_log("deceived", "Connection attempt failed")
    assert deceived.down_bytes > 0  # it saw the certificate, and turned away
    for name in ("unregistered", "deceived"):
        assert "SuperNode ID: " not in cluster.log(name)
