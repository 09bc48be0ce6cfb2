"""The server: any strategy of Flower, here FedAvg. The second of perbit's two lines is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from digits_app import task
from perbit.engines.flower import CompressedGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    run(grid, context.run_config, FedAvg)


def run(grid: Grid, config: dict[str, Any], make_strategy: Any) -> Result:
    """Train with a strategy, and say what came of it."""
    if config["compress"]:
        options = {name: config[name] for name in ("protocol", "up", "down") if config[name]}
        grid = CompressedGrid(grid, **options)
    nodes = int(config["min-nodes"])
    strategy = make_strategy(
        fraction_evaluate=1.0 if config["evaluate"] else 0.0,
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(x) for name, x in task.make_model(int(config["hidden"])).items()}),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=_evaluate,
    )
    _tell(result, grid, str(config["result"]))
    return result


def _evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"accuracy": task.accuracy(model, *task.load_test_data())})


def _tell(result: Result, grid: Grid, path: str) -> None:
    """What the run was worth, and what it cost."""
    by_round = result.evaluate_metrics_serverapp
    outcome: dict[str, Any] = {"accuracy": [by_round[number]["accuracy"] for number in sorted(by_round)]}
    if isinstance(grid, CompressedGrid):
        digests = {node: (grid.session.digest(node) or b"").hex() for node in grid.get_node_ids()}
        outcome |= {**vars(grid.traffic), "digests": digests}
        print(f"perbit: {grid.traffic}", flush=True)
    print(f"accuracy on images that no node has: {outcome['accuracy'][-1]:.3f}", flush=True)
    if path:
        Path(path).write_text(json.dumps(outcome))
