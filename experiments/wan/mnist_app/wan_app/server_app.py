"""The server: FedAvg, tested after every round; a line of the result for each."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from perbit.engines.flower import CompressedGrid
from wan_app import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    if config["up"]:
        grid = CompressedGrid(grid, up=str(config["up"]), down=str(config["down"]), seed=0)
    nodes, result = int(config["nodes"]), Path(str(config["result"]))

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        ended = time.time()  # testing does not count as a part of the round
        model = task.make_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        found = task.accuracy(model, str(config["data"]), int(config["test-samples"]))
        line = {"round": number, "ended": ended, "accuracy": found, "tested": time.time()}
        if isinstance(grid, CompressedGrid):
            line |= vars(grid.traffic)
        with result.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return MetricRecord({"accuracy": found})

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes, min_evaluate_nodes=0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.make_model().state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=3600,
        evaluate_fn=evaluate,
    )
