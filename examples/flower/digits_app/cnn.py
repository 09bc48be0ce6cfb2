"""The same task for PyTorch: a small convolutional network with batch norm, as most users have one. `model = "cnn"` chooses it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Model = dict[str, NDArray]
SIDE, CLASSES = 8, 10


class Net(nn.Module):
    """Two convolutions and two dense layers; batch norm brings running statistics and counters into the state dict."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.norm2 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.dense1, self.dense2 = nn.Linear(64 * (SIDE // 4) ** 2, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = images.reshape(-1, 1, SIDE, SIDE)
        x = functional.max_pool2d(functional.relu(self.norm1(self.conv1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.norm2(self.conv2(x))), 2)
        return self.dense2(functional.relu(self.dense1(x.flatten(1))))


def make_model(hidden: int) -> Model:
    """The first model, the same on every machine."""
    torch.manual_seed(0)
    return _values(Net(hidden))


def train(model: Model, images: NDArray, labels: NDArray, epochs: int, rate: float) -> float:
    """SGD with momentum in batches of 32, in place; gives the loss of the last batch."""
    net, rng = _net(model), np.random.default_rng(0)
    optimizer, loss = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9), torch.zeros(())
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for batch in np.array_split(order, max(1, len(order) // 32)):
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(torch.from_numpy(images[batch])), torch.from_numpy(labels[batch]))
            loss.backward()
            optimizer.step()
    model.update(_values(net))
    return loss.item()


def accuracy(model: Model, images: NDArray, labels: NDArray) -> float:
    """The share of images that are told right."""
    net = _net(model).eval()
    with torch.no_grad():
        return float((net(torch.from_numpy(images)).argmax(1).numpy() == labels).mean())


def _net(model: Model) -> Net:
    net = Net(hidden=len(model["dense1.bias"]))
    net.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in model.items()})
    return net


def _values(net: Net) -> Model:
    return {name: x.detach().numpy().copy() for name, x in net.state_dict().items()}
