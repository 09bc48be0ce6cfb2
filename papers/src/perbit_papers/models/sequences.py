"""Sequence models: next word, next character, and windows of sensor signals."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perbit.sim.data import Info


class NextWordLSTM(nn.Module):
    """FedML's Stack Overflow model (DeepReduce's LSTM): embedding 96, LSTM 670, projection 96: 4 053 428 parameters at 10 004 words."""

    def __init__(self, info: Info) -> None:
        super().__init__()
        self.embedding = nn.Embedding(info.n_classes, 96)
        self.lstm = nn.LSTM(96, 670, batch_first=True)
        self.project = nn.Linear(670, 96)
        self.output = nn.Linear(96, info.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        out: Tensor = self.output(self.project(states))
        return out


class CharLSTM(nn.Module):
    """A small character model: embedding 8, one LSTM of 128 (LEAF's Shakespeare model has two of 256)."""

    def __init__(self, info: Info) -> None:
        super().__init__()
        self.embedding = nn.Embedding(info.n_classes, 8)
        self.lstm = nn.LSTM(8, 128, batch_first=True)
        self.output = nn.Linear(128, info.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        out: Tensor = self.output(states)
        return out


class CharGPT(nn.Module):
    """A small pre-norm transformer for characters: four layers of width 128 with four heads: 820 289 parameters at 65 symbols and a length of 80."""

    def __init__(self, info: Info) -> None:
        if info.kind != "text":
            raise ValueError(f"it takes text, and samples of {info.name} are {info.kind}")
        super().__init__()
        width, heads, depth = 128, 4, 4
        (length,) = info.input_shape
        self.embedding = nn.Embedding(info.n_classes, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, info.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        past = nn.Transformer.generate_square_subsequent_mask(length)
        states = self.embedding(x) + self.position[:length]
        for layer in self.layers:
            states = layer(states, src_mask=past, is_causal=True)
        out: Tensor = self.output(self.norm(states))
        return out


class SeriesCNN(nn.Sequential):
    """Three one-dimensional convolutions over (channels, time), averaged over time."""

    def __init__(self, info: Info) -> None:
        if info.kind != "series":
            raise ValueError(f"it takes series (channels, time), and samples of {info.name} are {info.kind}")
        channels, _ = info.input_shape
        super().__init__(
            nn.Conv1d(channels, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(32, 64, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(64, info.n_classes),
        )
