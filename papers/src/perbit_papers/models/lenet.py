"""The small picture networks of MCM's deep runs on CIFAR-10 and MNIST; the one on Fashion-MNIST is perbit's own small CNN."""

from __future__ import annotations

from torch import nn

from perbit.sim.data import Info
from perbit.sim.models.simple import picture_shape


class LeNet(nn.Sequential):
    """LeNet-5 with ReLU and max pooling: 62 006 parameters on CIFAR-10."""

    def __init__(self, info: Info) -> None:
        channels, height, width = picture_shape(info)
        n_flat = 16 * _after_two_convs(height) * _after_two_convs(width)
        super().__init__(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(n_flat, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, info.n_classes),
        )


class MnistCNN(nn.Sequential):
    """The classic PyTorch MNIST example: 21 840 parameters."""

    def __init__(self, info: Info) -> None:
        channels, height, width = picture_shape(info)
        n_flat = 20 * _after_two_convs(height) * _after_two_convs(width)
        super().__init__(
            nn.Conv2d(channels, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            nn.Dropout2d(),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(n_flat, 50),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(50, info.n_classes),
        )


def _after_two_convs(side: int) -> int:
    """The side of a picture after conv 5, pool 2, conv 5, pool 2."""
    left = ((side - 4) // 2 - 4) // 2
    if left < 1:
        raise ValueError(f"pictures of side {side} are too small for two 5×5 convolutions")
    return left
