"""The Flower example's convolutional network with batch norm, trained by nodes in this process: as real as it gets without sockets."""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from threadpoolctl import threadpool_limits

from flower_network import Network
from perbit.engines.flower import CompressedGrid, Traffic, perbit_mod

ROOT = Path(__file__).parents[1]
EXAMPLE, DOCS = ROOT / "examples" / "flower", ROOT / "docs" / "engines.md"
if str(EXAMPLE) not in sys.path:
    sys.path.insert(0, str(EXAMPLE))

from digits_app import client_app, cnn, task  # noqa: E402

ARCHITECTURE = {"model": "cnn", "hidden": 128}


@dataclass(frozen=True)
class Setting:
    """How long, by how many, and how eagerly."""

    rounds: int = 25
    nodes: int = 10
    local_epochs: int = 2
    rate: float = 0.02

    @property
    def config(self) -> dict[str, Any]:
        return {**ARCHITECTURE, "local-epochs": self.local_epochs, "learning-rate": self.rate}


WHOLE, QUICK = Setting(), Setting(rounds=10, nodes=4, rate=0.05)


@dataclass(frozen=True)
class Outcome:
    """What a run was worth and what it cost."""

    accuracy: float
    traffic: Traffic


def app_with(*mods: Any) -> ClientApp:
    """The example's ClientApp with other mods."""
    app = ClientApp(mods=list(mods))
    app.train()(client_app.train)
    app.evaluate()(client_app.evaluate)
    return app


def network(setting: Setting, folder: Path | None = None) -> Network:
    """The nodes; without a folder they know nothing of perbit."""
    return Network(app_with(*([] if folder is None else [perbit_mod(folder)])), range(setting.nodes), setting.config)


def first_model() -> ArrayRecord:
    return ArrayRecord({name: Array(x) for name, x in cnn.make_model(int(ARCHITECTURE["hidden"])).items()})


def accuracy(arrays: ArrayRecord) -> float:
    """On images that no node has."""
    return cnn.accuracy({name: array.numpy() for name, array in arrays.items()}, *task.load_test_data())


def train(grid: Grid, rounds: int, strategy: Any = FedAvg, timeout: float = 60.0) -> float:
    """The accuracy after so many rounds. Strategies shuffle the nodes, and sums of floats depend on their order."""
    random.seed(0)
    with threadpool_limits(1):
        started = strategy(fraction_evaluate=0.0)
        return accuracy(
            started.start(grid=grid, initial_arrays=first_model(), num_rounds=rounds, timeout=timeout).arrays
        )


def outcome_of(make: Callable[[Grid], CompressedGrid], setting: Setting, strategy: Any = FedAvg) -> Outcome:
    """A whole run on the grid that `make` makes."""
    with tempfile.TemporaryDirectory() as folder, make(network(setting, Path(folder))) as grid:
        return Outcome(train(grid, setting.rounds, strategy), grid.traffic)


@cache
def plain_accuracy(setting: Setting, strategy: Any = FedAvg) -> float:
    """The same without perbit."""
    return train(network(setting), setting.rounds, strategy)


def documented() -> dict[str, str]:
    """The lines of docs/engines.md that make a grid, each with what stands before it in its block."""
    lines: dict[str, str] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL):
        before: list[str] = []
        for line in block.splitlines():
            if line.startswith("CompressedGrid(grid"):
                lines[line.partition("  #")[0].rstrip()] = "\n".join(before)
            else:
                before.append(line)
    return lines


def made_by(line: str, before: str) -> Callable[[Grid], CompressedGrid]:
    """What a reader gets who copies a line."""

    def make(grid: Grid) -> CompressedGrid:
        names: dict[str, Any] = {}
        exec(before, names)
        names.update(grid=grid, CompressedGrid=partial(CompressedGrid, seed=1))
        made: CompressedGrid = eval(line, names)
        return made

    return make
