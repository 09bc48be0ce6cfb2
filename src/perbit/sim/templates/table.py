"""Data, model and training of your own, which compare.toml names as "mine:..."; change what you like."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Array = NDArray[Any]


def data() -> Any:
    """A train and a test part, each (x, y) or (x, y, client): a row for each sample, its class, who holds it."""
    rng = np.random.default_rng(0)
    n, n_features, n_classes, n_clients = 3000, 20, 4, 10
    client = rng.integers(n_clients, size=n)
    y = (client + rng.integers(2, size=n)) % n_classes  # every client sees two of the classes
    x = rng.normal(size=(n_classes, n_features))[y] + 1.5 * rng.normal(size=(n, n_features))
    return (x[:2000], y[:2000], client[:2000]), (x[2000:], y[2000:])


class Model(nn.Sequential):
    """Any torch.nn.Module that can be made without arguments."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 4))


def partition(split: Any, clients: int, seed: int) -> list[Array]:
    """For each client the numbers of its samples; split.x, split.y and split.group hold them all."""
    return np.array_split(np.random.default_rng(seed).permutation(len(split)), clients)


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    """What training minimises, for a mini-batch."""
    return functional.cross_entropy(outputs, y, label_smoothing=0.1)


def metric(outputs: Tensor, y: Tensor) -> float:
    """What the table shows, for all test samples at once; larger is better. Here: the worst recall of a class."""
    right = outputs.argmax(dim=1) == y
    return min(float(right[y == label].float().mean()) for label in range(4))


def train(model: nn.Module, samples: Any, task: Any, seed: int) -> None:
    """One client's training in one round: change the model in place. Torch is seeded; `task` holds the settings of [task]."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=task.rate)
    for _ in range(task.local_epochs):
        for x, y in torch.utils.data.DataLoader(samples, task.batch, shuffle=True):
            optimiser.zero_grad()
            loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
