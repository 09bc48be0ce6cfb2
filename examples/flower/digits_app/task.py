"""The model, the data and the training; nothing here knows of Flower or perbit."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def make_model(hidden: int) -> nn.Sequential:
    """A small network with batch norm, whose int64 counters must survive every round exactly."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def load_data(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    """One node's share of the training images."""
    images, labels = _images()
    held_out = len(labels) // 5
    return images[held_out + partition :: partitions], labels[held_out + partition :: partitions]


def load_test_data() -> tuple[Tensor, Tensor]:
    """A fifth of the images, which no node trains on."""
    images, labels = _images()
    return images[: len(labels) // 5], labels[: len(labels) // 5]


def _images() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, learning_rate: float) -> float:
    """Plain SGD in batches of 32; gives the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    model.train()
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=generator).split(32):
            optimizer.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return float(loss.detach())


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images that are told right."""
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())
