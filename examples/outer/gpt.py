"""A small GPT for characters, and Shakespeare's text for it; what train.py and experiments/outer train."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from perbit_papers.data import store


class Block(nn.Module):
    """Attention to what came before, then two layers; no biases, and norms without parameters."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(norm(x)).chunk(3, dim=2)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(norm(x))))


class GPT(nn.Module):
    """Scores of the next character at every place; the output shares its weights with the embedding."""

    def __init__(self, symbols: int, length: int = 64, width: int = 96, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        for name, weight in self.named_parameters():
            deep = name.endswith(("out.weight", "down.weight"))  # what is added up over the blocks begins smaller
            std = (1 / math.sqrt(2 * depth) if deep else 1.0) / math.sqrt(weight.shape[1])
            nn.init.normal_(weight, std=std if name.startswith("blocks") else 0.02)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x) + self.position[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(norm(hidden), self.embedding.weight)


def norm(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:])


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


class Text:
    """A text as numbers; the last tenth is held out, and every worker has its own part of the rest."""

    def __init__(self, path: Path | None = None, root: Path | None = None) -> None:
        raw = np.frombuffer(path.read_bytes(), np.uint8) if path else store.read("tinyshakespeare", root)["text"]
        alphabet, coded = np.unique(raw, return_inverse=True)
        self.symbols = len(alphabet)
        self.all = torch.from_numpy(coded.astype(np.int64))
        self.held_out = 9 * len(coded) // 10

    def batch(
        self, size: int, length: int, worker: int, workers: int, random: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Windows from the worker's part, and the character that follows at every place."""
        begin, end = (self.held_out * at // workers for at in (worker, worker + 1))
        return self._windows(torch.randint(begin, end - length - 1, (size,), generator=random), length)

    def test(self, size: int, length: int) -> tuple[Tensor, Tensor]:
        """Windows of the held-out part, the same for everybody."""
        return self._windows(torch.linspace(self.held_out, len(self.all) - length - 2, size).long(), length)

    def _windows(self, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        windows = self.all[starts[:, None] + torch.arange(length + 1)]
        return windows[:, :-1], windows[:, 1:]
