"""The server: any strategy of Flower, here FedAvg. The second of perbit's two lines is here."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from digits_app import task
from digits_app.checkpoint import Checkpoint
from perbit.engines.flower import CompressedGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    run(grid, context.run_config, FedAvg)


def run(grid: Grid, config: dict[str, Any], make_strategy: Any) -> Result:
    """Train with a strategy, and say what came of it."""
    if not config["compress"]:
        return _train(grid, config, make_strategy)
    options: dict[str, Any] = {name: config[name] for name in ("protocol", "up", "down", "first") if config[name]}
    if config["max-norm"]:
        options["max_norm"] = float(config["max-norm"])
    if config["checkpoint"]:
        options["folder"] = Path(config["checkpoint"]) / "perbit"  # what perbit must not lose
    with CompressedGrid(grid, **options) as grid:  # at the end the nodes delete what they had to remember
        return _train(grid, config, make_strategy)


def _train(grid: Grid, config: dict[str, Any], make_strategy: Any) -> Result:
    nodes, learner = int(config["min-nodes"]), task.learner(config["model"])
    strategy = make_strategy(
        fraction_evaluate=1.0 if config["evaluate"] else 0.0,
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    saved = Checkpoint(config["checkpoint"])
    n_done, model = saved.load() or (0, learner.make_model(int(config["hidden"])))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(x) for name, x in model.items()}),
        num_rounds=int(config["rounds"]) - n_done,
        timeout=float(config["timeout"]),
        evaluate_fn=partial(_evaluate, learner, saved, n_done),
    )
    saved.remove()
    _tell(result, grid, str(config["result"]))
    return result


def _evaluate(
    learner: ModuleType, saved: Checkpoint, n_done: int, server_round: int, arrays: ArrayRecord
) -> MetricRecord:
    model = {name: array.numpy() for name, array in arrays.items()}
    saved.save(n_done + server_round, model)
    return MetricRecord({"accuracy": learner.accuracy(model, *task.load_test_data())})


def _tell(result: Result, grid: Grid, path: str) -> None:
    """What the run was worth, and what it cost."""
    by_round = result.evaluate_metrics_serverapp
    outcome: dict[str, Any] = {"accuracy": [by_round[number]["accuracy"] for number in sorted(by_round)]}
    if isinstance(grid, CompressedGrid):
        outcome |= vars(grid.traffic)
        print(f"perbit: {grid.traffic}", flush=True)
    print(f"accuracy on images that no node has: {outcome['accuracy'][-1]:.3f}", flush=True)
    if path:
        Path(path).write_text(json.dumps(outcome))
