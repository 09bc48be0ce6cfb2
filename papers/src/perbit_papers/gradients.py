"""Real gradients and model updates, recorded while a network trains: the material codecs are judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal

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
    network = seeded(model, data.info, seed)
    optimiser = _optimiser(network, "adam", rate)
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
    client: Dataset | None = None,
    warm_up: int = 0,
    batch: int = 16,
    rate: float = 0.3,
    optimiser: Literal["sgd", "adam"] = "sgd",
    progress: Progress | None = None,
) -> Tensors:
    """What one client of federated averaging sends: the change of the model over `steps` of training, after `warm_up` steps on all data.

    Args:
        client: what the client trains on after the warm-up; by default it goes on with all data.
        optimiser: the rule of both phases; the client starts with a fresh one, as it does in every round.
    """
    network = seeded(model, data.info, seed)
    everyone = batches(data, batch, seed)
    _train(network, data, islice(everyone, warm_up), _optimiser(network, optimiser, rate), progress)
    before = _snapshot(network)
    own = batches(client, batch, seed) if client else everyone
    _train(network, data, islice(own, steps), _optimiser(network, optimiser, rate), progress)
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


def _optimiser(network: torch.nn.Module, name: str, rate: float) -> torch.optim.Optimizer:
    import torch

    return (torch.optim.Adam if name == "adam" else torch.optim.SGD)(network.parameters(), lr=rate)


def _train(
    network: torch.nn.Module,
    data: Dataset,
    samples: Iterable[tuple[Array, Array]],
    optimiser: torch.optim.Optimizer,
    progress: Progress | None,
) -> None:
    for step, (x, y) in enumerate(samples, start=1):
        value = _backward(network, data, x, y)
        optimiser.step()
        if progress:
            progress(step, value)


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
