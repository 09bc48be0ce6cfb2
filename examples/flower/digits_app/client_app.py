"""A node: it trains on its share of the digits. The first of perbit's two lines is here."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from digits_app import task
from perbit.engines.flower import perbit_mod

app = ClientApp(mods=[perbit_mod()])


def _model_and_data(message: Message, context: Context) -> tuple[nn.Module, Tensor, Tensor]:
    model = task.make_model(int(context.run_config["hidden"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    return model, *task.load_data(int(partition), int(partitions))


@app.train()
def train(message: Message, context: Context) -> Message:
    model, images, labels = _model_and_data(message, context)
    config = context.run_config
    loss = task.train(model, images, labels, int(config["local-epochs"]), float(config["learning-rate"]))
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, images, labels = _model_and_data(message, context)
    metrics = MetricRecord({"num-examples": len(labels), "accuracy": task.accuracy(model, images, labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
