"""Real gradients and model updates, recorded while a network trains: the material codecs are judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perbit.sim.data import Array, Dataset
from perbit.sim.models import seeded

if TYPE_CHECKING:
    import torch

Tensors = dict[str, NDArray[np.float32]]
Progress = Callable[[int, float], None]  # step, loss


def collect(
    data: Dataset,
    model: str,
    steps: int,
    seed: int = 0,
    at: Sequence[int] = (),
    *,
    batch: int = 32,
    rate: float = 1e-4,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Tensors]]:
    """Train with Adam; yield (step, the mini-batch gradient of every parameter) at each step of `at`, by default the last. Steps count from 1."""
    import torch

    network = seeded(model, data.info, seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    for step, (x, y) in enumerate(islice(batches(data, batch, seed), steps), start=1):
        value = _backward(network, data, x, y)
        if step in (at or [steps]):
            yield step, {name: _array(p.grad) for name, p in network.named_parameters() if p.grad is not None}
        optimiser.step()
        if progress:
            progress(step, value)


def update(
    data: Dataset,
    model: str,
    steps: int,
    seed: int = 0,
    *,
    warm_up: int = 0,
    batch: int = 16,
    rate: float = 0.3,
    progress: Progress | None = None,
) -> Tensors:
    """What one client of federated averaging sends: the change of the model over `steps` of SGD, after `warm_up` steps."""
    import torch

    network = seeded(model, data.info, seed)
    optimiser = torch.optim.SGD(network.parameters(), lr=rate)
    before: Tensors = {}
    for step, (x, y) in enumerate(islice(batches(data, batch, seed), warm_up + steps)):
        if step == warm_up:
            before = _snapshot(network)
        value = _backward(network, data, x, y)
        optimiser.step()
        if progress:
            progress(step + 1, value)
    return {name: after - before[name] for name, after in _snapshot(network).items()}


def batches(data: Dataset, size: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Mini-batches for ever: each epoch a new order, the short batch at its end left out."""
    rng = np.random.default_rng(seed)
    size = min(size, len(data.train))
    while True:
        order = rng.permutation(len(data.train))
        for start in range(0, len(order) - size + 1, size):
            part = order[start : start + size]
            yield data.prepare(data.train.x[part]), data.train.y[part]


def _backward(network: torch.nn.Module, data: Dataset, x: Array, y: Array) -> float:
    """Leave the gradient of one mini-batch in the network; return its loss."""
    import torch

    network.zero_grad()
    value = data.objective.loss(network(torch.from_numpy(x)), torch.from_numpy(y))
    value.backward()  # type: ignore[no-untyped-call,unused-ignore]
    return value.item()


def _snapshot(network: torch.nn.Module) -> Tensors:
    return {name: _array(p) for name, p in network.named_parameters()}


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.array(tensor.detach().numpy(), np.float32)  # a copy: training goes on in place
