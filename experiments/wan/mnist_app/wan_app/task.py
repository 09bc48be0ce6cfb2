"""A perceptron of 20 574 730 parameters on pictures of 28 x 28; nothing here knows of Flower."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from perbit.sim.data import load

HIDDEN = (6144, 2560)
BATCH = 50


def make_model() -> nn.Sequential:
    """The same first values everywhere."""
    torch.manual_seed(0)
    first, second = HIDDEN
    layers = (nn.Linear(784, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def train(model: nn.Module, data: str, node: int, nodes: int, samples: int, number: int, rate: float) -> None:
    """One pass over samples of the node's own share, others in every round; SGD with momentum."""
    source = load(data)
    own = np.arange(node, len(source.train), nodes)
    chosen = np.random.default_rng(1000 * number + node).choice(own, min(samples, len(own)), replace=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    model.train()
    for batch in np.array_split(chosen, max(1, len(chosen) // BATCH)):
        optimizer.zero_grad()
        x, y = torch.from_numpy(source.prepare(source.train.x[batch])), torch.from_numpy(source.train.y[batch])
        cross_entropy(model(x), y).backward()
        optimizer.step()


def accuracy(model: nn.Module, data: str, samples: int) -> float:
    """The share of test pictures that are told right."""
    source = load(data)
    model.eval()
    x: Tensor = torch.from_numpy(source.prepare(source.test.x[:samples]))
    with torch.no_grad():
        return float((model(x).argmax(1) == torch.from_numpy(source.test.y[:samples])).float().mean())
