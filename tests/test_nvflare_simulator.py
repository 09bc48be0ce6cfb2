"""NVFlare's simulator, the real engine: two clients learn with coded messages, through restarts and damage."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

LEARNING = '''
import numpy as np
from sklearn.datasets import load_digits

SITES = ["site-1", "site-2"]
x, labels = load_digits(return_X_y=True)
features = np.maximum(x / 16 @ np.random.default_rng(0).normal(size=(64, 400)), 0).astype(np.float32) / 40


def trained(weights, site):
    """Thirty steps of softmax regression on this site's half of the digits."""
    mine = slice(SITES.index(site), 1500, 2)
    for _ in range(30):
        odds = np.exp(features[mine] @ weights)
        error = odds / odds.sum(1, keepdims=True) - np.eye(10)[labels[mine]]
        weights = weights - 5 * features[mine].T @ error / len(error)
    return weights.astype(np.float32)


def accuracy(weights):
    return float(np.mean((features[1500:] @ weights).argmax(1) == labels[1500:]))
'''

CLIENT = """
import os
import nvflare.client as flare
from learning import accuracy, trained

flare.init()
while flare.is_running():
    model = flare.receive()
    with open(os.environ["PROCESSES"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    params = {name: trained(x, flare.get_site_name()) for name, x in model.params.items()}
    flare.send(flare.FLModel(params=params, params_type="FULL", metrics={"accuracy": accuracy(*params.values())}))
"""

SPOIL = '''
from nvflare.apis.dxo_filter import DXOFilter


class Spoil(DXOFilter):
    """Damages one client's frame of one round."""

    def __init__(self, number, site):
        super().__init__(None, None)
        self.number, self.site = number, site

    def process_dxo(self, dxo, shareable, fl_ctx):
        if (shareable.get_header("current_round"), fl_ctx.get_identity_name()) == (self.number, self.site):
            dxo.data["perbit"] = dxo.data["perbit"][:-1] + b"?"
        return dxo
'''

JOB = """
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe.sim_env import SimEnv
from perbit.engines.nvflare import ClientInput, ClientOutput, ServerInput, ServerOutput
from spoil import Spoil

if __name__ == "__main__":
    model = [[0.0] * 10 for _ in range(400)]
    recipe = NumpyFedAvgRecipe(name="digits", model=model, min_clients=2, num_rounds=3, train_script="client.py")
    recipe.add_client_input_filter(Spoil(1, "site-1"), tasks=["train"])
    recipe.add_server_output_filter(ServerOutput(up="qsgd(127) | rans", down="qsgd(127) | rans"), tasks=["train"])
    recipe.add_client_input_filter(ClientInput(), tasks=["train"])
    recipe.add_client_output_filter(ClientOutput(), tasks=["train"])
    recipe.add_client_output_filter(Spoil(2, "site-2"), tasks=["train"])
    recipe.add_server_input_filter(ServerInput(), tasks=["train"])
    recipe.run(SimEnv(num_clients=2, num_threads=1, workspace_root="workspace"))
"""


def plain_averaging(folder: Path, rounds: list[list[str]]) -> tuple[Any, Callable[[Any], float]]:
    """What the same clients learn without any engine, and how to judge it."""
    learning: dict[str, Any] = {}
    exec((folder / "learning.py").read_text(), learning)
    weights = np.zeros((400, 10), np.float32)
    for sites in rounds:
        weights = np.mean([learning["trained"](weights, site) for site in sites], axis=0)
    return weights, learning["accuracy"]


@pytest.mark.slow
def test_the_simulator_learns_the_same_with_fewer_bytes_and_survives_damage(tmp_path: Path) -> None:
    """One thread for two clients: NVFlare ends each client's process after every task, so that each round is a restart."""
    sources = {"learning.py": LEARNING, "client.py": CLIENT, "spoil.py": SPOIL, "job.py": JOB}
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    env = {**os.environ, "PROCESSES": str(tmp_path / "processes.txt")}
    subprocess.run([sys.executable, "job.py"], cwd=tmp_path, env=env, check=True, capture_output=True, timeout=400)
    assert len(set((tmp_path / "processes.txt").read_text().split())) == 3 * 2
    run = tmp_path / "workspace" / "digits"
    expected, accuracy = plain_averaging(tmp_path, [["site-1", "site-2"], ["site-1", "site-2"], ["site-1"]])
    got = np.load(run / "server" / "simulate_job" / "models" / "server.npy")
    assert accuracy(expected) > 0.85
    assert abs(accuracy(got) - accuracy(expected)) < 0.02
    assert np.linalg.norm(got - expected) < 0.06 * np.linalg.norm(expected)  # 127 levels make 0.037, 255 half of it
    assert not np.array_equal(got, expected)  # it was coded

    left = [site for site in ("site-1", "site-2") if (run / site / "simulate_job" / "perbit").exists()]
    assert len(left) < 2  # the simulator tells one client, at least, that the run is over

    log = (run / "server" / "log.txt").read_text()
    traffic = ast.literal_eval(re.findall(r"perbit traffic: (\{.*\})", log)[-1])
    assert (traffic["n_resyncs"], traffic["n_dropped"]) == (1, 1)
    assert (traffic["plain_down_bytes"], traffic["plain_up_bytes"]) == (6 * 16_000, 5 * 16_000)
    assert traffic["up_bytes"] < 6 * 16_000 / 6
    assert traffic["down_bytes"] < 3 * 16_500 + 4 * 3_000  # one whole frame for each client, and one to heal
    assert "resync of client site-1" in log
    assert "result of client site-2 is dropped" in log
