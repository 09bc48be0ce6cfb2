"""Picture classifiers: the Table-I CNN, ResNet-20, DenseNet-40-12 in two forms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from perbit.sim.data import Info
from perbit.sim.models.simple import picture_shape


class TableOneCNN(nn.Sequential):
    """Table I of the paper on M-magnitude-weighted quantizers (Salehkalaibar and Rini, 2022):
    551 722 trainable parameters on CIFAR-10, 552 874 with batch norm's moving statistics.

    The table has no activation layers, so each belongs to its convolution and comes before the batch norm. Our choice, where
    the paper is silent: dropout .2, .3, .4, .5, growing with depth, and He-uniform weights.
    """

    def __init__(self, info: Info) -> None:
        channels, height, width = picture_shape(info)
        n_flat = 128 * (height // 8) * (width // 8)
        super().__init__(
            *_conv_pair(channels, 32, 0.2),
            *_conv_pair(32, 64, 0.3),
            *_conv_pair(64, 128, 0.4),
            nn.Flatten(),
            nn.Linear(n_flat, 128),
            nn.ReLU(),
            nn.BatchNorm1d(128),
            nn.Dropout(0.5),
            nn.Linear(128, info.n_classes),
        )
        for layer in self:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type,unused-ignore]


def _conv_pair(n_in: int, n_out: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for n in (n_in, n_out):
        layers += [nn.Conv2d(n, n_out, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(n_out)]
    return [*layers, nn.MaxPool2d(2), nn.Dropout(dropout)]


class ResNet20(nn.Sequential):
    """He et al. 2016 for CIFAR: three stages of three blocks, shortcuts without parameters: 269 722 trainable."""

    def __init__(self, info: Info) -> None:
        blocks = [_Block(16, 16, 1) for _ in range(3)]
        for n_in, n_out in ((16, 32), (32, 64)):
            blocks += [_Block(n_in, n_out, 2), _Block(n_out, n_out, 1), _Block(n_out, n_out, 1)]
        super().__init__(
            nn.Conv2d(picture_shape(info)[0], 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, info.n_classes),
        )
        _he_normal(self)


class _Block(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.stride, self.n_new = stride, n_out - n_in

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        # "option A": every other pixel, new channels zero
        shortcut = functional.pad(
            x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.n_new // 2, self.n_new - self.n_new // 2)
        )
        return functional.relu(y + shortcut)


class DenseNet40(nn.Sequential):
    """Huang et al. 2017, depth 40, growth 12, no bottleneck: 1 019 722 trainable."""

    def __init__(self, info: Info) -> None:
        super().__init__(*_dense_layers(picture_shape(info)[0], info.n_classes))
        _he_normal(self)


class DenseNet40K12(nn.Sequential):
    """DeepReduce's DenseNet40-K12: 357 491 trainable on CIFAR-10, the number in its Table 1.

    The form of TensorFlow's CNN benchmarks: the convolutions between the stages leave 24 channels instead of all, every convolution has a
    bias, and there is a class more than the data have. Differs from there: the output of that class is left out of the softmax.
    """

    def __init__(self, info: Info) -> None:
        super().__init__(*_dense_layers(picture_shape(info)[0], info.n_classes + 1, between=24, bias=True))
        _he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x[:, :-1]


def _dense_layers(channels: int, n_classes: int, between: int | None = None, bias: bool = False) -> list[nn.Module]:
    """Three stages of twelve dense convolutions; `between` is the width after each of the first two, if not all channels."""
    growth, n = 12, 16
    layers: list[nn.Module] = [nn.Conv2d(channels, n, 3, padding=1, bias=bias)]
    for stage in range(3):
        for _ in range(12):
            layers.append(_Dense(n, growth, bias))
            n += growth
        if stage < 2:
            layers += [nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, between or n, 1, bias=bias), nn.AvgPool2d(2)]
            n = between or n
    return [*layers, nn.BatchNorm2d(n), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, n_classes)]


class _Dense(nn.Module):
    def __init__(self, n_in: int, growth: int, bias: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(n_in)
        self.conv = nn.Conv2d(n_in, growth, 3, padding=1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(functional.relu(self.norm(x)))], dim=1)


def _he_normal(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
