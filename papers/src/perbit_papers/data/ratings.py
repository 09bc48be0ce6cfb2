"""MovieLens 100K as NCF takes it: which film a user watched, among films sampled at random."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perbit.sim.data import Array, Dataset, Info, Objective, Split
from perbit_papers.data import store

if TYPE_CHECKING:
    from torch import Tensor

NEGATIVES = 4  # per positive, as in the NCF paper
SEED = 20170404  # of the negatives: the set is the same on every machine
N_CANDIDATES = 100  # each user's test block is one positive item and 99 others
TOP = 10


class HitRate(Objective):
    """One number a pair: it is trained to tell watched from not watched, and tested by the share of users whose film is among their ten best."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.binary_cross_entropy_with_logits(outputs, y.float())

    def n_right(self, outputs: Tensor, y: Tensor) -> tuple[int, int]:
        """(hits, users), over whole blocks of 100 candidates."""
        scores = outputs.reshape(-1, N_CANDIDATES)  # the positive item is the first of its block
        rank = (scores[:, 1:] >= scores[:, :1]).sum(dim=1)
        return int((rank < TOP).sum()), len(scores)


def movielens(root: Path | str | None = None) -> Dataset:
    """Pairs (user, item) with y = 1 where watched; each user's latest film and 99 unwatched ones are the test. `group` is the user."""
    arrays = store.read("movielens", root)
    user, item = arrays["user"].astype(np.int64), arrays["item"].astype(np.int64)
    n_users, n_items = int(user.max()) + 1, int(item.max()) + 1
    watched = np.zeros((n_users, n_items), bool)
    watched[user, item] = True
    is_last = _latest(user, arrays["time"])
    positives = np.stack([user, item], axis=1)
    rng = np.random.default_rng(SEED)
    info = Info("movielens", "ratings", (2,), 2, n_users, n_items)
    train = with_negatives(positives[~is_last], watched, NEGATIVES, rng)
    test = with_negatives(positives[is_last], watched, N_CANDIDATES - 1, rng)
    return Dataset(info, train, test, objective=HitRate())


def with_negatives(positives: Array, watched: Array, n: int, rng: np.random.Generator) -> Split:
    """Each positive pair followed by n of the same user with films not watched, drawn uniformly with replacement."""
    user = np.repeat(positives[:, 0], n + 1)
    item = np.empty((len(positives), n + 1), np.int64)
    item[:, 0] = positives[:, 1]
    for u in np.unique(positives[:, 0]):
        rows = np.flatnonzero(positives[:, 0] == u)
        item[rows, 1:] = rng.choice(np.flatnonzero(~watched[u]), (len(rows), n))
    y = np.tile(np.arange(n + 1) == 0, len(positives)).astype(np.int64)
    return Split(np.stack([user, item.ravel()], axis=1), y, user)


def _latest(user: Array, time: Array) -> Array:
    """Mark each user's latest rating; of several at one time, the last in the file."""
    order = np.lexsort((np.arange(len(user)), time, user))
    is_last = np.zeros(len(user), bool)
    is_last[order[np.append(np.diff(user[order]) != 0, True)]] = True
    return is_last
