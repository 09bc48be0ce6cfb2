"""Recorded gradients and updates: what a client trains on, by which rule, and the transformer they are also recorded of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from perbit.sim import models
from perbit.sim.data import Dataset, Info, Split, load
from perbit_papers import gradients
from perbit_papers.models import count

torch.set_num_threads(1)  # small models only wait for each other on more

CHARS = Info("chars", "text", (80,), 65)


def test_a_client_trains_on_its_own_data_only() -> None:
    digits = load("digits")
    threes = replace(digits, train=digits.train.take(np.flatnonzero(digits.train.y == 3)))
    change = gradients.update(digits, "logistic", 4, client=threes, warm_up=5, rate=0.1)["1.bias"]
    assert change[3] > 0
    assert np.all(np.delete(change, 3) < 0)


def test_a_client_starts_from_the_warmed_up_model() -> None:
    digits = load("digits")
    client = digits.head(200)
    cold = gradients.update(digits, "logistic", 4, client=client, rate=0.1)
    warm = gradients.update(digits, "logistic", 4, client=client, warm_up=50, rate=0.1)
    assert np.linalg.norm(warm["1.weight"]) < 0.8 * np.linalg.norm(cold["1.weight"])


def test_a_client_begins_with_a_fresh_optimiser() -> None:
    """Adam's first step is the rate itself in every coordinate, whatever the size of the gradient and the steps before."""
    step = gradients.update(load("digits"), "logistic", 1, warm_up=20, rate=1e-3, optimiser="adam")["1.bias"]
    np.testing.assert_allclose(np.abs(step), 1e-3, rtol=1e-3)


def test_the_transformer_has_its_size_and_sees_only_the_past() -> None:
    model = models.seeded("gpt", CHARS, 0).eval()
    assert count(model) == 820_289
    x = torch.randint(0, 65, (2, 80))
    changed = x.clone()
    changed[:, 50:] = (changed[:, 50:] + 1) % 65
    with torch.no_grad():
        difference = (model(x) - model(changed)).abs().amax(dim=(0, 2))
    assert float(difference[:50].max()) == 0
    assert float(difference[50:].min()) > 0


def test_the_transformer_takes_text_only() -> None:
    with pytest.raises(models.ModelError, match="takes text, and samples of cifar10 are image"):
        models.build("gpt", Info("cifar10", "image", (3, 32, 32), 10))


def test_the_transformer_learns_an_order_of_symbols() -> None:
    """Each symbol is the one before it plus one."""
    start = np.random.default_rng(0).integers(0, 8, (64, 1))
    x = (start + np.arange(12)) % 8
    cycle = Split(x, (x + 1) % 8)
    losses: list[float] = []
    data = Dataset(Info("cycle", "text", (12,), 8), cycle, cycle)
    list(gradients.collect(data, "gpt", 20, batch=16, rate=1e-3, progress=lambda _, loss: losses.append(loss)))
    assert losses[-1] < 0.2 * losses[0]
