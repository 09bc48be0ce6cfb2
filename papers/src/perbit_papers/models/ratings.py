"""A model of ratings: neural collaborative filtering."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from perbit.sim.data import Info


class NeuMF(nn.Module):
    """NCF (He et al. 2017): a factorisation and an MLP over user and item embeddings, one logit.

    With the sizes here it has the 31 832 577 parameters that DeepReduce reports on MovieLens-20M. Its gradients are sparse by nature.
    """

    def __init__(self, info: Info, n_factors: int = 64) -> None:
        if not info.n_users or not info.n_items:
            raise ValueError("it needs users and items, as in movielens")
        super().__init__()
        n_hidden = 2 * n_factors
        self.user_factors = nn.Embedding(info.n_users, n_factors)
        self.item_factors = nn.Embedding(info.n_items, n_factors)
        self.user_hidden = nn.Embedding(info.n_users, n_hidden)
        self.item_hidden = nn.Embedding(info.n_items, n_hidden)
        sizes = [2 * n_hidden, 256, 128, 64]
        self.mlp = nn.Sequential(*[layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())])
        self.output = nn.Linear(n_factors + sizes[-1], 1)
        for layer in self.modules():
            if isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        user, item = x[:, 0], x[:, 1]
        product = self.user_factors(user) * self.item_factors(item)
        hidden = self.mlp(torch.cat([self.user_hidden(user), self.item_hidden(item)], dim=1))
        logit: Tensor = self.output(torch.cat([product, hidden], dim=1))
        return logit.squeeze(1)
