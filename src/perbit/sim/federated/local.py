"""What a client does in a round, in ordinary torch code; and how a model is tested."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from perbit.sim.dataset import Array, Dataset, Split
from perbit.sim.federated.settings import Task
from perbit.sim.imports import imported_function

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TEST_BATCH = 1000  # a multiple of 100: an objective may judge in blocks of 100


def train(network: torch.nn.Module, data: Dataset, part: Array, task: Task, seed: int) -> None:
    """Local epochs or steps from where the network stands; with `prox`, tied to that point (FedProx). Or the user's own training."""
    import torch

    torch.manual_seed(seed)  # dropout
    network.train()
    if task.train:
        imported_function("train", task.train)(network, Samples(data, part), task, seed)
        return
    start = [p.detach().clone() for p in network.parameters()] if task.prox else []
    optimiser = _optimiser(network, task)
    for x, y in _share_of_round(data, part, task, np.random.default_rng(seed)):
        optimiser.zero_grad()
        loss = data.objective.loss(network(x), y)
        for p, p0 in zip(network.parameters(), start, strict=False):
            loss = loss + task.prox / 2 * (p - p0).square().sum()
        loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
        _clip(network, task)
        optimiser.step()


def gradient(network: torch.nn.Module, data: Dataset, part: Array, task: Task, seed: int) -> None:
    """Leave the gradient of one random mini-batch in the network."""
    import torch

    torch.default_generator.manual_seed(
        seed
    )  # torch.manual_seed notes the call stack for every kind of GPU, at the price of a small step
    network.train()
    network.zero_grad()
    chosen = np.random.default_rng(seed).permutation(part)[: task.batch]
    for x, y in _batches(data, chosen, task.batch):
        data.objective.loss(network(x), y).backward()  # type: ignore[no-untyped-call,unused-ignore]
    _clip(network, task)


def test(network: torch.nn.Module, data: Dataset) -> tuple[float, float]:
    """(accuracy, loss) on the test part; what accuracy is, the objective says: it may be the user's own metric."""
    import torch

    network.eval()
    total = 0.0

    def judged() -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal total
        for x, y in _batches(data, np.arange(len(data.test)), TEST_BATCH, data.test):
            outputs = network(x)
            total += data.objective.loss(outputs, y).item() * len(y)
            yield outputs, y

    with torch.no_grad():
        score = data.objective.score(judged())
    return score, total / len(data.test)


def mean_loss(network: torch.nn.Module, data: Dataset, part: Array) -> float:
    """The loss of a client's samples, without training."""
    import torch

    network.eval()
    with torch.no_grad():
        losses = [data.objective.loss(network(x), y).item() for x, y in _batches(data, part, TEST_BATCH)]
    return sum(losses) / max(1, len(losses))


class Samples:
    """One client's samples as a torch Dataset, for a user's own training: `torch.utils.data.DataLoader` takes it."""

    def __init__(self, data: Dataset, part: Array) -> None:
        self.data, self.part = data, part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([i])[0]

    def __getitems__(self, chosen: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Several at once, which a DataLoader asks for."""
        if any(not -len(self) <= i < len(self) for i in chosen):
            raise IndexError(f"there are {len(self)} samples")
        x, y = next(_batches(self.data, self.part[chosen], len(chosen)))
        return list(zip(x, y, strict=True))


def trivial_accuracy(data: Dataset) -> float | None:
    """The test accuracy of always giving the commonest answer of the training part; None where answers are ranked (ratings) or numbers."""
    if data.info.kind == "ratings" or data.train.y.dtype.kind not in "iu":
        return None
    seen = data.train.y.reshape(-1)
    commonest = np.bincount(seen[seen >= 0]).argmax()  # negative: no answer is asked for
    asked = data.test.y.reshape(-1)
    return float((asked[asked >= 0] == commonest).mean())


def _clip(network: torch.nn.Module, task: Task) -> None:
    """A rare gradient that is many times as long as the others is carried by error feedback for many rounds."""
    import torch

    if task.clip:
        torch.nn.utils.clip_grad_norm_(network.parameters(), task.clip)


def _optimiser(network: torch.nn.Module, task: Task) -> torch.optim.Optimizer:
    import torch

    if task.optimiser == "adam":
        return torch.optim.Adam(network.parameters(), lr=task.rate)
    return torch.optim.SGD(network.parameters(), lr=task.rate, momentum=task.momentum)


def _share_of_round(
    data: Dataset, part: Array, task: Task, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """`local_steps` mini-batches, going through the samples as often as that takes; or whole epochs."""
    if not len(part):
        return
    epochs = itertools.repeat(None) if task.local_steps else itertools.repeat(None, task.local_epochs)
    batches = (batch for _ in epochs for batch in _batches(data, rng.permutation(part), task.batch))
    yield from itertools.islice(batches, task.local_steps or None)


def _batches(data: Dataset, order: Array, size: int, split: Split | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Mini-batches in this order. A last one of a single sample is left out of training: batch norm cannot take it."""
    import torch

    source = split or data.train
    for begin in range(0, len(order), size):
        chosen = order[begin : begin + size]
        if len(chosen) == 1 and split is None and begin:
            return
        yield torch.from_numpy(data.prepare(source.x[chosen])), torch.from_numpy(source.y[chosen])
