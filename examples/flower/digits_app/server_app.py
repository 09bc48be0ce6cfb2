"""The server: any strategy of Flower, here FedAvg. The second of perbit's two lines is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from digits_app import task
from perbit.engines.flower import CompressedGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    if config["compress"]:
        options = {name: config[name] for name in ("protocol", "up", "down") if config[name]}
        grid = CompressedGrid(grid, **options)
    nodes = int(config["min-nodes"])
    strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.make_model(int(config["hidden"])).state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=lambda round_, arrays: _evaluate(arrays, int(config["hidden"])),
    )
    _tell(result, grid, str(config["result"]))


def _evaluate(arrays: ArrayRecord, hidden: int) -> MetricRecord:
    model = task.make_model(hidden)
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": task.accuracy(model, *task.load_test_data())})


def _tell(result: Result, grid: Grid, path: str) -> None:
    """What the run was worth, and what it cost."""
    by_round = result.evaluate_metrics_serverapp
    outcome: dict[str, Any] = {"accuracy": [by_round[number]["accuracy"] for number in sorted(by_round)]}
    if isinstance(grid, CompressedGrid):
        outcome |= vars(grid.traffic)
        outcome["digests"] = {node: (grid.session.digest(node) or b"").hex() for node in grid.get_node_ids()}
        print(f"perbit: {grid.traffic}", flush=True)
    print(f"accuracy on images that no node has: {outcome['accuracy'][-1]:.3f}", flush=True)
    if path:
        Path(path).write_text(json.dumps(outcome))
