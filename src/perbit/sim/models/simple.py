"""Models for rows and small pictures: logistic regression, perceptrons, a small CNN."""

from __future__ import annotations

import math

from torch import nn

from perbit.sim.dataset import Info


class Logistic(nn.Sequential):
    """Multinomial logistic regression (two classes: the usual one, written with two logits)."""

    def __init__(self, info: Info) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(info.input_shape), info.n_classes))


class MLP(nn.Sequential):
    """One hidden layer of 64."""

    def __init__(self, info: Info) -> None:
        n_in = math.prod(info.input_shape)
        super().__init__(nn.Flatten(), nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, info.n_classes))


class WideMLP(nn.Sequential):
    """Two hidden layers of 256: far more parameters than digits need, as networks have today."""

    width = 256

    def __init__(self, info: Info) -> None:
        n_in = math.prod(info.input_shape)
        hidden = [nn.Linear(n_in, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU()]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(self.width, info.n_classes))


class DeepMLP(WideMLP):
    """Two hidden layers of 128, which train in a third of the time."""

    width = 128


class SmallCNN(nn.Sequential):
    """Two padded convolutions and two dense layers: 53 002 parameters on digits, 421 642 on pictures of 28×28."""

    def __init__(self, info: Info) -> None:
        channels, height, width = picture_shape(info)
        layers: list[nn.Module] = []
        for n_in, n_out in ((channels, 32), (32, 64)):
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
        dense = [nn.Linear(64 * (height // 4) * (width // 4), 128), nn.ReLU(), nn.Linear(128, info.n_classes)]
        super().__init__(*layers, nn.Flatten(), *dense)


def picture_shape(info: Info) -> tuple[int, int, int]:
    """(channels, height, width), or a sentence that says why not."""
    if info.kind != "image" or len(info.input_shape) != 3:
        raise ValueError(
            f"it takes pictures (channels, height, width), and samples of {info.name} are {info.kind} of shape {info.input_shape}"
        )
    channels, height, width = info.input_shape
    return channels, height, width
