"""Comparisons on a Ray cluster: the same bytes as in local processes, also where a node is lost; what a run writes travels whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from perbit.cli import main
from perbit.files import FileError
from perbit.sim.compare import cluster, config
from perbit.sim.compare.pool import Job, Report, Show
from perbit.sim.federated.runs import Outcome

TESTS = Path(__file__).parent

COMPARISON = """
seeds = [0, 1]
[task]
data = "./rays.npz"
model = "ray_net:Net"
clients = 3
rounds = 8
[[methods]]
name = "float32"
[[methods]]
name = "sparse"
protocol = "co3"
decay = 1.0
up = "topk(0.05) | qsgd(7) | rans"
"""
MODULE = """
import os, time, torch
from pathlib import Path
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(6, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    def forward(self, x):
        where = os.environ.get("PERBIT_TEST_SLOWLY")
        if where and self.training:
            Path(where, str(os.getpid())).touch()
            time.sleep(0.1)
        return super().forward(x)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own, whose data git does not see."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=150)
    np.savez("rays.npz", x=(np.eye(3, 6)[y] + rng.normal(size=(150, 6))).astype(np.float32), y=y)
    Path("ray_net.py").write_text(MODULE)
    Path("mine.toml").write_text(COMPARISON)
    Path(".gitignore").write_text("*.npz\n")
    return tmp_path


@pytest.fixture(scope="module")
def nodes() -> Iterator[subprocess.Popen[str]]:
    """Two nodes of one processor each, in processes of their own."""
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    command = [sys.executable, "-u", str(TESTS / "ray_cluster.py")]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, text=True, env=quiet, **streams)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(120)
        process.stdout.close()


@pytest.fixture(scope="module")
def address(nodes: subprocess.Popen[str]) -> str:
    assert nodes.stdout is not None
    said = nodes.stdout.readline().strip()
    assert ":" in said
    return said


def compare(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perbit.cli", "compare", "mine.toml", "--no-report", *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=600)


def results(folder: str) -> dict[str, bytes]:
    """All that depends on the seed alone."""
    found = [Path(folder, "results.json"), *Path(folder).rglob("ledger.jsonl"), *Path(folder).rglob("result.json")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.slow
def test_a_cluster_gives_the_bytes_of_local_processes(here: Path, address: str) -> None:
    there = compare("-o", "there", "--ray", address)
    assert there.returncode == 0, there.stderr
    local = compare("-o", "local", "--processes", "2")
    assert local.returncode == 0, local.stderr
    assert len(results("local")) == 9
    assert results("there") == results("local")
    assert "TOML:" in there.stdout
    again = compare("-o", "there", "--ray", address, "--resume", "--json")
    assert json.loads(again.stdout)["runs"] == json.loads(Path("local/results.json").read_text())["runs"]


@pytest.mark.slow
def test_a_killed_node_and_a_killed_driver_cost_nothing(
    here: Path, address: str, nodes: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The node goes while it trains; then the driver is killed -9, and --resume ends with the same bytes."""
    beats = tmp_path_factory.mktemp("beats")
    slowly = {"PERBIT_TEST_SLOWLY": str(beats)}
    command = [sys.executable, "-m", "perbit.cli", "compare", "mine.toml", "--no-report", "-o", "there"]
    environment = {**os.environ, **slowly}
    driver = subprocess.Popen([*command, "--ray", address], env=environment, stderr=subprocess.PIPE, text=True)
    assert driver.stderr is not None
    while len(list(beats.iterdir())) < 3:  # the driver has tried the model, and both nodes train
        assert driver.poll() is None
        time.sleep(0.1)
    assert nodes.stdin is not None
    assert nodes.stdout is not None
    nodes.stdin.write("\n")
    nodes.stdin.flush()
    assert nodes.stdout.readline() == "replaced\n"
    while "done" not in (line := driver.stderr.readline()):
        assert line, "the driver ended"
    driver.kill()
    driver.communicate()
    assert not Path("there/results.json").exists()
    resumed = compare("-o", "there", "--ray", address, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert compare("-o", "local", "--processes", "2").returncode == 0
    assert results("there") == results("local")


@pytest.mark.slow
def test_the_mailbox_is_on_the_drivers_node(here: Path, address: str) -> None:
    """Elsewhere it would go with a node that is lost, and the whole comparison with it; Ray puts what needs no processor anywhere."""
    code = f"""
import ray
from perbit.sim.compare import cluster
ray.init(address={address!r}, log_to_driver=False)
ask = lambda mailbox: mailbox.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())
boxes = [cluster.mailbox_here() for _ in range(6)]
print(set(ray.get([ask(box) for box in boxes])) == {{ray.get_runtime_context().get_node_id()}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip().endswith("True"), done.stderr


class Postman:
    """Stands in for Ray: one letter is never delivered until it is told so."""

    def __init__(self) -> None:
        self.mailbox, self.delivered = cluster.Mailbox(), True

    @property
    def put(self) -> Postman:
        return self

    def remote(self, news: cluster.News) -> cluster.News:
        self.mailbox.put(news)
        return news

    def wait(self, letters: list[cluster.News], timeout: float) -> tuple[list[cluster.News], list[cluster.News]]:
        assert timeout == 0
        return (letters, []) if self.delivered else ([], letters)


def test_a_run_does_not_wait_for_a_driver_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a letter is stuck only the last report still goes out; what the run returns has all the files."""
    postman = Postman()
    monkeypatch.setattr(cluster.ray, "wait", postman.wait)
    monkeypatch.setattr(cluster.ray, "get", lambda letters: letters)

    def run(index: int, job: Job, show: Show) -> Outcome:
        job.folder.mkdir(exist_ok=True)
        (job.folder / "ledger.jsonl").write_text("line")
        for done in range(1, 9):
            postman.delivered = done < 2
            show(Report(index, done, 8, 0.5, done))
        return {"done": 8}

    monkeypatch.setattr(cluster, "run_job", run)
    task, method = config.load("demo").task, config.load("demo").methods[0]
    outcome, pieces = cluster._run_there(0, 1, Job(task, method, 0, tmp_path), [], postman, cluster.versions())
    assert [(letter.at_try, letter.said.done) for letter in postman.mailbox.take()] == [(1, 1), (1, 8)]  # type: ignore[union-attr]
    assert postman.mailbox.take() == []
    assert (outcome, [piece.data for piece in pieces]) == ({"done": 8}, [b"line"])


def test_what_a_lost_try_still_has_to_say_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, method = config.load("demo").task, config.load("demo").methods[0]
    monkeypatch.setattr(cluster, "mailbox_here", lambda: None)
    shown: list[Report] = []
    runs = cluster._Runs([Job(task, method, 0, tmp_path)], shown.append)
    runs.tries = [2]
    told: list[Report | list[cluster.Piece]]
    told = [Report(0, 7, 8, 0.5, 1), [cluster.Piece("ledger.jsonl", 0, b"old")]]
    now: list[Report | list[cluster.Piece]]
    now = [Report(0, 5, 8, 0.5, 1), [cluster.Piece("ledger.jsonl", 0, b"new")]]
    letters = [*(cluster.News(0, 2, said) for said in now), *(cluster.News(0, 1, said) for said in told)]
    monkeypatch.setattr(cluster.ray, "get", lambda _: letters)
    runs.mailbox = SimpleNamespace(take=SimpleNamespace(remote=lambda: None))
    runs.fetch()
    assert [report.done for report in shown] == [5]
    assert (tmp_path / "ledger.jsonl").read_bytes() == b"new"


@pytest.mark.slow
def test_a_mistake_on_a_node_is_one_sentence(here: Path, address: str) -> None:
    done = compare("-o", "there", "--ray", address, PERBIT_KERNELS="none")
    assert done.returncode != 0
    Path("ray_net.py").write_text(MODULE.replace("if where and self.training", f"if os.getcwd() != {str(here)!r}"))
    done = compare("-o", "there", "--ray", address)
    assert done.returncode == 2, done.stderr
    assert "ray_net" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_cluster_is_one_sentence(here: Path) -> None:
    done = compare("-o", "there", "--ray", "127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.startswith("perbit: there is no Ray cluster to be had at 127.0.0.1:1")
    assert "Traceback" not in done.stderr


def test_without_ray_the_extra_is_named(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["compare", "mine.toml", "--ray", "auto"]) == 2
    assert 'pip install "perbit[ray]"' in capsys.readouterr().err
    assert not Path("perbit-runs").exists()


def test_files_of_a_run_travel_in_pieces(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "frames").mkdir(parents=True)
    (there / "ledger.jsonl").write_bytes(b"1\n")
    (there / "checkpoint.npz").write_bytes(b"one")
    sent: dict[str, tuple[int, int]] = {}
    pieces = cluster.news(there, sent)
    assert [piece.name for piece in pieces] == [
        "ledger.jsonl",
        "checkpoint.npz",
    ]  # a checkpoint speaks of lines that are there
    cluster.keep(here, pieces)
    (there / "ledger.jsonl").write_bytes(b"1\n22\n")
    (there / "checkpoint.npz").unlink()
    (there / "frames" / "a.pbit").write_bytes(b"frame")
    pieces = cluster.news(there, sent)
    assert ("ledger.jsonl", 2, b"22\n") in pieces
    cluster.keep(here, pieces)
    assert {str(p.relative_to(here)): p.read_bytes() for p in here.rglob("*") if p.is_file()} == {
        "ledger.jsonl": b"1\n22\n",
        "frames/a.pbit": b"frame",
    }
    assert cluster.news(there, sent) == []
    with pytest.raises(FileError, match="outside of"):
        cluster.keep(here, [cluster.Piece("../x", 0, b"")])
