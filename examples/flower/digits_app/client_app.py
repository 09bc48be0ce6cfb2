"""A node: it trains on its share of the digits. The first of perbit's two lines is here."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app import task
from perbit.engines.flower import perbit_mod

app = ClientApp(mods=[perbit_mod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    images, labels = _data(context)
    config, learner = context.run_config, task.learner(context.run_config["model"])
    loss = learner.train(model, images, labels, int(config["local-epochs"]), float(config["learning-rate"]))
    arrays = ArrayRecord({name: Array(np.asarray(x)) for name, x in model.items()})
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    images, labels = _data(context)
    accuracy = task.learner(context.run_config["model"]).accuracy(model, images, labels)
    metrics = MetricRecord({"num-examples": len(labels), "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _data(context: Context):
    return task.load_data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
