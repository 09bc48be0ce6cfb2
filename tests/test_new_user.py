"""A new user's path: perbit init, data and a module of one's own, a comparison, and its printed method copied to where it is used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_cluster import EXAMPLE
from perbit.cli import main
from perbit.sim.federated import world
from test_flower_runs import Simulation

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(12, 300), torch.nn.BatchNorm1d(300)
        self.last = torch.nn.Linear(300, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))
"""
METHOD = """
[[methods]]
name = "sparse, in a budget"
protocol = "co3"
decay = 0.9
up = "topk(?) | qsgd(7) | rans"
small = "fp16"
budget_bits = 52000
rules = { "last.weight" = "fp16", "*running_var" = "raw" }
"""
SHORT = {"seeds = [0, 1, 2]": "seeds = [0, 1]", "rounds = 15": "rounds = 5", "clients = 10": "clients = 4"}


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the comparison prints that a user made of `perbit init`; the folder is theirs from then on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    world._data.cache_clear()
    assert main(["init", "table"]) == 0
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=400)
    x = (np.eye(4, 12)[y] * 2 + rng.normal(size=(400, 12))).astype(np.float32)
    np.savez("own.npz", x=x, y=y, client=np.arange(400) % 4)
    Path("own_net.py").write_text(MODULE)
    text = Path("compare.toml").read_text()
    changes = {'data = "mine:data"': 'data = "./own.npz"', 'model = "mine:Model"': 'model = "own_net:Net"', **SHORT}
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    float32 = text.split("[[methods]]")[:2]  # and no other of the methods that init proposes
    Path("compare.toml").write_text("[[methods]]".join(float32) + METHOD)
    capsys.readouterr()
    assert main(["compare", "compare.toml", "--processes", "1", "--no-report"]) == 0
    return capsys.readouterr().out


def printed(out: str, language: str) -> str:
    """The code under a heading of what was printed, as far as one would mark it with the mouse."""
    return out.split(f"\n{language}:\n\n")[1].split("\n\nDDP:" if language == "Flower" else "\n\nFlower:")[0]


def runs(folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path("perbit-runs", folder, "results.json").read_text())["runs"]
    return found


def row(out: str) -> list[str]:
    """The line of the table, without measured times."""
    line = next(line for line in out.splitlines() if line.startswith("sparse, in a budget"))
    cells = line.removeprefix("sparse, in a budget").split()
    return cells[:-3] + cells[-1:]


def test_the_printed_method_gives_the_same_accuracy_and_bytes_to_the_last_digit(
    first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = Path("compare.toml").read_text().split("[[methods]]")[0]
    Path("second.toml").write_text(f'{head}[[methods]]\nname = "float32"\n\n{printed(first, "TOML")}\n')
    assert main(["compare", "second.toml", "--processes", "1", "--no-report"]) == 0
    assert runs("second") == runs("compare")
    assert runs("second")[0]["history"][-1]["accuracy"] > 0.5  # it did learn
    assert row(capsys.readouterr().out) == row(first)
    assert Path("perbit-runs/compare/table.txt").read_text() in first


@pytest.mark.slow
def test_the_printed_python_runs_in_the_flower_example(first: str, tmp_path: Path) -> None:
    """Pasted into the server of the example, and run by Flower's simulation."""
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    code = printed(first, "Flower")
    (line,) = [line for line in code.splitlines() if line.startswith("# the server:")]
    grid = line.split("with ")[1].split(" as grid")[0]
    server = app / "digits_app" / "server_app.py"
    text = server.read_text()
    assert "with CompressedGrid(grid, **options) as grid:" in text
    text = text.replace("CompressedGrid(grid, **options)", grid).replace(
        "app = ServerApp()", f"{code}\n\napp = ServerApp()"
    )
    server.write_text(text)
    (line,) = [line for line in code.splitlines() if line.startswith("# the client:")]
    assert line.removeprefix("# the client:").strip() in (app / "digits_app" / "client_app.py").read_text()
    result = tmp_path / "result.json"
    config = f'result="{result}" rounds=3 hidden=256 evaluate=false'
    with Simulation(tmp_path / "flower") as env:
        command = ["flwr", "run", str(app), "local", "--stream", "--federation-config", "num-supernodes=2"]
        done = subprocess.run([*command, "--run-config", config], env=env, capture_output=True, text=True, timeout=900)
    assert result.exists(), done.stdout + done.stderr
    outcome = json.loads(result.read_text())
    assert outcome["accuracy"][-1] > max(0.4, outcome["accuracy"][0])
    assert outcome["n_dropped"] == outcome["n_resyncs"] == 0
    a_message = outcome["up_bytes"] / 6  # of two nodes in three rounds
    assert a_message < 52000 / 8 + 200  # the budget, and the envelope
    assert outcome["plain_up_bytes"] > 20 * outcome["up_bytes"]
