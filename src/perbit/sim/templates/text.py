"""Data, model and training of your own, which compare.toml names as "mine:..."; change what you like."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Array = NDArray[Any]
LENGTH, N_SYMBOLS = 32, 24


def data() -> Any:
    """A train and a test part, each (x, y) or (x, y, client): whole numbers, and for each symbol the one that follows."""
    rng = np.random.default_rng(0)
    follows = rng.permuted(np.tile(np.arange(N_SYMBOLS), (N_SYMBOLS, 1)), axis=1)[:, :3]  # three may follow each
    text = rng.integers(N_SYMBOLS, size=(1200, LENGTH + 1))
    for i in range(LENGTH):
        text[:, i + 1] = follows[text[:, i], rng.choice(3, size=len(text), p=(0.7, 0.2, 0.1))]
    writer = np.arange(len(text)) % 10
    return (text[:800, :-1], text[:800, 1:], writer[:800]), (text[800:, :-1], text[800:, 1:])


class Model(nn.Module):
    """Any torch.nn.Module that can be made without arguments; here it gives a number for each symbol at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(N_SYMBOLS, 32)
        self.recur = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, N_SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.recur(self.embed(x))[0])
        return out


def partition(split: Any, clients: int, seed: int) -> list[Array]:
    """For each client the numbers of its samples; split.x, split.y and split.group hold them all."""
    return np.array_split(np.random.default_rng(seed).permutation(len(split)), clients)


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    """What training minimises, for a mini-batch."""
    return functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), label_smoothing=0.05)


def metric(outputs: Tensor, y: Tensor) -> float:
    """What the table shows, for all test samples at once; larger is better. Here: minus the bits a symbol takes."""
    return -float(functional.cross_entropy(outputs.flatten(0, 1), y.flatten())) / 0.6931


def train(model: nn.Module, samples: Any, task: Any, seed: int) -> None:
    """One client's training in one round: change the model in place. Torch is seeded; `task` holds the settings of [task]."""
    optimiser = torch.optim.Adam(model.parameters(), lr=task.rate)
    for _ in range(task.local_epochs):
        for x, y in torch.utils.data.DataLoader(samples, task.batch, shuffle=True):
            optimiser.zero_grad()
            loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
