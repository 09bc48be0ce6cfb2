"""A node: trains on its share."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from perbit.engines.flower import perbit_mod
from wan_app import task

app = ClientApp(mods=[perbit_mod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    config, node = context.run_config, context.node_config
    model = task.make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    number = int(message.content["config"]["server-round"])
    share = (int(node["partition-id"]), int(node["num-partitions"]), int(config["samples"]))
    task.train(model, str(config["data"]), *share, number, float(config["learning-rate"]))
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": share[2]})}
    return Message(RecordDict(content), reply_to=message)
