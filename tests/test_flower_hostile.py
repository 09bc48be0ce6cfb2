"""A hostile client among five for fifty rounds of a real Flower simulation.

`pytest -s -m slow tests/test_flower_hostile.py` prints the accuracy with it and without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_cluster import EXAMPLE
from test_flower_runs import Simulation

ROUNDS = int(os.environ.get("PERBIT_TEST_ROUNDS", "50"))
CONFIG = f"rounds={ROUNDS} hidden=64 evaluate=false min-nodes=5 local-epochs=1 max-norm=5.0 timeout=20"


def outcome(folder: Path, mode: str) -> dict[str, Any]:
    app, result = folder / "app", folder / "result.json"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).parent / "flower_hostile_app.py", app / "digits_app" / "hostile_app.py")
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("digits_app.client_app:app", "digits_app.hostile_app:app"))
    with Simulation(folder) as env:
        # as many at once as nodes: who answers for another must be there at the same time
        federation = "num-supernodes=5 init-args-num-cpus=5 client-resources-num-cpus=1"
        command = ["flwr", "run", str(app), "local", "--stream", "--federation-config", federation]
        config = f'{CONFIG} result="{result}"'
        env = {**env, "PERBIT_TEST_HOSTILE": mode, "PERBIT_TEST_SHARED": str(folder)}
        done = subprocess.run([*command, "--run-config", config], env=env, capture_output=True, text=True, timeout=1800)
    assert result.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(result.read_text())
    return found


@pytest.mark.slow
def test_a_hostile_client_changes_nothing(tmp_path: Path) -> None:
    without, attacked = (outcome(tmp_path / mode, mode) for mode in ("silent", "attacks"))
    last, other = without["accuracy"][-1], attacked["accuracy"][-1]
    print(f"accuracy after {ROUNDS} rounds: {last:.4f} without the hostile client, {other:.4f} with it; {attacked}")
    noise = np.sqrt(last * (1 - last) / 359)  # of a share of the 359 test images
    assert len(attacked["accuracy"]) == ROUNDS + 1  # every round came to its end
    assert other > last - 3 * noise
    assert attacked["n_dropped"] >= ROUNDS // 2
    assert attacked["n_too_large"] > 0
    assert ROUNDS < 11 or list((tmp_path / "attacks").glob("taken-*"))  # answers in another node's name
    assert attacked["down_bytes"] < 2 * without["down_bytes"]
