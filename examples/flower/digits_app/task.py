"""The model, the data and the training, in plain numpy so that a node starts in a second; nothing here knows of perbit."""

from __future__ import annotations

import gzip
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

Model = dict[str, NDArray]
CLASSES, PIXELS = 10, 64


def learner(model: str) -> ModuleType:
    """Who makes, trains and tests the model: this module for "mlp", the one with PyTorch for "cnn"."""
    return import_module({"mlp": "digits_app.task", "cnn": "digits_app.cnn"}[model])


def make_model(hidden: int) -> Model:
    """Two hidden layers, and a counter of steps: like those of batch norm it is an integer and must survive exactly."""
    rng = np.random.default_rng(0)
    sizes = [PIXELS, hidden, hidden, CLASSES]
    model: Model = {}
    for number, (n_in, n_out) in enumerate(pairwise(sizes)):
        model[f"layer{number}.weight"] = rng.normal(0, np.sqrt(2 / n_in), (n_in, n_out)).astype(np.float32)
        model[f"layer{number}.bias"] = np.zeros(n_out, np.float32)
    return {**model, "steps": np.array(0, np.int64)}


def load_data(partition: int, partitions: int) -> tuple[NDArray, NDArray]:
    """One node's share of the training images."""
    images, labels = _digits()
    held_out = len(labels) // 5
    return images[held_out + partition :: partitions], labels[held_out + partition :: partitions]


def load_test_data() -> tuple[NDArray, NDArray]:
    """A fifth of the images, which no node trains on."""
    images, labels = _digits()
    return images[: len(labels) // 5], labels[: len(labels) // 5]


@cache
def _digits() -> tuple[NDArray, NDArray]:
    """The file of sklearn.datasets.load_digits, read without importing all of scikit-learn."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ImportError("the digits come with scikit-learn: pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = np.random.default_rng(0).permutation(table)
    return table[:, :-1] / 16, table[:, -1].astype(int)


def train(model: Model, images: NDArray, labels: NDArray, epochs: int, rate: float) -> float:
    """SGD with momentum in batches of 32, in place; gives the loss of the last batch."""
    rng, loss = np.random.default_rng(0), 0.0
    momentum = {name: np.zeros_like(x) for name, x in model.items() if name != "steps"}
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for batch in np.array_split(order, len(order) // 32):
            loss, gradient = _gradient(model, images[batch], labels[batch])
            for name, g in gradient.items():
                momentum[name] = np.float32(0.9) * momentum[name] + g
                model[name] = model[name] - np.float32(rate) * momentum[name]
            model["steps"] = model["steps"] + 1
    return loss


def accuracy(model: Model, images: NDArray, labels: NDArray) -> float:
    """The share of images that are told right."""
    return float((_layers(model, images)[-1].argmax(1) == labels).mean())


def _layers(model: Model, images: NDArray) -> list[NDArray]:
    """The input and the output of each layer."""
    layers = [images]
    for number in range(3):
        x = layers[-1] @ model[f"layer{number}.weight"] + model[f"layer{number}.bias"]
        layers.append(np.maximum(x, 0) if number < 2 else x)
    return layers


def _gradient(model: Model, images: NDArray, labels: NDArray) -> tuple[float, Model]:
    """Cross-entropy and its gradient, layer by layer from the end."""
    layers = _layers(model, images)
    scores = layers[-1] - layers[-1].max(1, keepdims=True)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    loss = float(-np.log(shares[np.arange(len(labels)), labels] + 1e-12).mean())
    back = (shares - np.eye(CLASSES, dtype=np.float32)[labels]) / np.float32(len(labels))
    gradient: Model = {}
    for number in (2, 1, 0):
        gradient[f"layer{number}.weight"] = layers[number].T @ back
        gradient[f"layer{number}.bias"] = back.sum(0)
        back = (back @ model[f"layer{number}.weight"].T) * (layers[number] > 0)
    return loss, gradient
