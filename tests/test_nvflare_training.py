"""NVFlare: a network with batch norm learns through the filters what it learns without them; -s prints the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")
pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch
from sklearn.datasets import load_digits

from nvflare_federation import Federation, Tensors, task_of

SITES, ROUNDS, TRAINING = 4, 12, 1400


class Digits:
    """Handwritten digits, shared out to sites, and the training of one site."""

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        self.images = torch.tensor(images[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
        self.labels = torch.tensor(labels[order])

    def trained(self, weights: Tensors, site: int) -> Tensors:
        """Two passes over the data of one site."""
        net = network(weights).train()
        optimiser = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        mine = torch.arange(site, TRAINING, SITES)
        for batch in (*mine.split(25), *mine.split(25)):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(self.images[batch]), self.labels[batch]).backward()
            optimiser.step()
        return weights_of(net)

    def accuracy(self, weights: Tensors) -> float:
        with torch.no_grad():
            found = network(weights).eval()(self.images[TRAINING:]).argmax(1)
        return float((found == self.labels[TRAINING:]).float().mean())


def network(weights: Tensors | None = None) -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 64),
        torch.nn.BatchNorm1d(64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )
    if weights is not None:
        net.load_state_dict({name: torch.as_tensor(x) for name, x in weights.items()})
    return net


def weights_of(net: Any) -> Tensors:
    return {name: x.detach().numpy().copy() for name, x in net.state_dict().items()}


def mean_of(results: list[Tensors]) -> Tensors:
    return {name: np.mean([r[name] for r in results], axis=0).astype(x.dtype) for name, x in results[0].items()}


def learned(digits: Digits, federation: Federation | None) -> float:
    """The accuracy after all rounds, of plain averaging or through the filters."""
    weights = weights_of(network())
    for _ in range(ROUNDS):
        task, results = task_of(weights), []
        for site in range(SITES):
            if federation is None:
                results.append(digits.trained(weights, site))
            else:
                results.append(federation.exchange(f"site-{site}", task, lambda x: digits.trained(x, site)))  # noqa: B023
        weights = mean_of(results)
    return digits.accuracy(weights)


QUICK_START = {"up": "topk(0.01) | qsgd(7) | rans"}


@pytest.fixture(scope="module")
def digits() -> Iterator[Digits]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many tiny steps: threads would wait for each other
    yield Digits()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def plain(digits: Digits) -> float:
    return learned(digits, None)


@pytest.mark.parametrize(
    ("chosen", "up_ratio"),
    [
        pytest.param(QUICK_START, 20, id="quick start"),
        pytest.param({"protocol": "federated"}, 15, id="federated"),
        pytest.param({"protocol": "mcm"}, 10, id="mcm"),
        pytest.param({**QUICK_START, "small": "uniform(8) | rans", "rules": {"*running_var": "raw"}}, 50, id="rules"),
    ],
)
def test_a_network_with_batch_norm_learns_as_without_compression(
    tmp_path: Path, digits: Digits, plain: float, chosen: dict[str, Any], up_ratio: float
) -> None:
    federation = Federation(tmp_path, SITES, seed=0, **chosen)
    accuracy = learned(digits, federation)
    print(f"plain {plain:.3f}, {chosen} {accuracy:.3f}: {federation.traffic.summary()}")
    assert plain > 0.95
    assert accuracy > plain - 0.03
    assert federation.traffic.ratios()["up_ratio"] > up_ratio
