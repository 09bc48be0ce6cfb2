"""Models: their parameter counts are those of the texts, they fit their data, and they learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from perbit.sim import models
from perbit.sim.data import Dataset, Info, Objective, Split, load
from perbit_papers import gradients
from perbit_papers.data.ratings import HitRate
from perbit_papers.models import count

torch.set_num_threads(1)  # small models only wait for each other on more

CIFAR = Info("cifar10", "image", (3, 32, 32), 10)
MNIST = Info("mnist", "image", (1, 28, 28), 10)
WORDS = Info("words", "text", (20,), 10_004)
CHARS = Info("chars", "text", (80,), 65)
FILMS = Info("films", "ratings", (2,), 2, 943, 1682)
SENSORS = Info("sensors", "series", (6, 128), 12)
TABLE = Info("a9a", "tabular", (123,), 2)


@pytest.mark.parametrize(
    ("name", "info", "n"),
    [
        ("cnn", CIFAR, 551_722),
        ("lenet", CIFAR, 62_006),
        ("lenet-mnist", MNIST, 21_840),
        ("lenet-fashion", MNIST, 421_642),
        ("resnet20", CIFAR, 269_722),
        ("densenet40", CIFAR, 1_019_722),
        ("densenet40-k12", CIFAR, 357_491),
        ("lstm", WORDS, 4_053_428),
        ("char-lstm", CHARS, 79_561),
        ("ncf", FILMS, 611_073),
        ("ncf", Info("ml-20m", "ratings", (2,), 2, 138_493, 26_744), 31_832_577),
        ("series-cnn", SENSORS, 32_620),
        ("logistic", TABLE, 248),
        ("mlp", Info("digits", "image", (1, 8, 8), 10), 4_810),
        ("mlp-wide", Info("digits", "image", (1, 8, 8), 10), 85_002),
        ("small-cnn", Info("digits", "image", (1, 8, 8), 10), 53_002),
    ],
)
def test_parameter_counts(name: str, info: Info, n: int) -> None:
    assert count(models.build(name, info)) == n


def test_table_one_counts_moving_statistics_as_keras_does() -> None:
    assert count(models.build("cnn", CIFAR), moving_statistics=True) == 552_874


def test_table_one_layer_by_layer() -> None:
    """The parameter column of Table I, batch norm's moving statistics included."""
    with_state = [n for n in (count(layer, True) for layer in models.build("cnn", CIFAR)) if n]
    norms = [128, 128, 256, 256, 512, 512, 512]
    weights = [896, 9248, 18496, 36928, 73856, 147584, 262272]
    assert with_state == [n for pair in zip(weights, norms, strict=True) for n in pair] + [1290]


@pytest.mark.parametrize(
    "name", ["small-cnn", "lenet", "cnn", "resnet20", "densenet40", "densenet40-k12", "series-cnn", "ncf"]
)
def test_a_model_that_does_not_fit_says_so(name: str) -> None:
    with pytest.raises(models.ModelError, match="words"):
        models.build(name, WORDS)


def test_the_wrong_number_of_outputs_is_seen() -> None:
    with pytest.raises(models.ModelError, match=r"gives \(2, 123\) for two samples, not \(2, 2\)"):
        models.build("torch.nn:ReLU", TABLE)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet21", "did you mean resnet20"),
        ("quux!", "known: logistic, mlp, mlp-128, mlp-wide, small-cnn, char-lstm, cnn"),
        ("no.such.module:Net", "cannot be imported"),
        ("torch.nn:NoSuchLayer", "cannot be imported"),
        ("datetime:date", "cannot be built"),
        ("fractions:Fraction", "not a torch.nn.Module"),
    ],
)
def test_unknown_models(name: str, sentence: str) -> None:
    with pytest.raises(models.ModelError, match=sentence):
        models.build(name, TABLE)


def test_a_module_by_import_path() -> None:
    assert count(models.build("perbit.sim.models.simple:Logistic", TABLE)) == 248
    identity = models.build("torch.nn:Identity", Info("two", "tabular", (2,), 2))
    assert isinstance(identity, torch.nn.Identity)


def test_building_keeps_training_mode_and_statistics() -> None:
    model = models.build("resnet20", CIFAR)
    assert model.training
    assert all(float(b.abs().max()) == 0 for name, b in model.named_buffers() if name.endswith("running_mean"))


def test_gradients_are_the_same_for_a_seed_and_the_model_learns() -> None:
    digits = load("digits")
    losses: list[float] = []
    runs = [
        list(
            gradients.collect(
                digits, "mlp", 60, seed, (1, 60), rate=1e-2, progress=lambda _, value: losses.append(value)
            )
        )
        for seed in (1, 1, 2)
    ]
    (first, early), (last, late) = runs[0]
    assert (first, last) == (1, 60)
    assert {name: a.shape for name, a in early.items()} == {
        "1.weight": (64, 64),
        "1.bias": (64,),
        "3.weight": (10, 64),
        "3.bias": (10,),
    }
    assert all(np.array_equal(late[name], runs[1][1][1][name]) for name in late)
    assert not np.array_equal(late["1.weight"], runs[2][1][1]["1.weight"])
    assert np.mean(losses[50:60]) < 0.3 * losses[0]


def test_an_update_is_the_sum_of_its_steps() -> None:
    digits = load("digits")
    parts = [gradients.update(digits, "logistic", 1, warm_up=k, rate=0.1) for k in range(4)]
    whole = gradients.update(digits, "logistic", 4, rate=0.1)
    for name, value in whole.items():
        np.testing.assert_allclose(sum(part[name] for part in parts), value, atol=1e-6)


def test_ncf_gradients_are_sparse_by_nature() -> None:
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 943, 500), rng.integers(0, 1682, 500)], axis=1)
    films = Split(x, rng.integers(0, 2, 500))
    ((_, tensors),) = gradients.collect(Dataset(FILMS, films, films, objective=HitRate()), "ncf", 2, batch=64)
    touched = np.any(tensors["item_factors.weight"] != 0, axis=1)
    assert 0 < touched.sum() <= 64


def test_loss_and_score_of_each_kind() -> None:
    logits = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
    y = torch.tensor([0, 1, 1])
    classes, hits = Objective(), HitRate()
    assert classes.n_right(logits, y) == classes.n_right(logits[None], y[None]) == (2, 3)
    assert float(classes.loss(logits, y)) == pytest.approx((4 + 3 * np.log1p(np.exp(-4))) / 3)
    assert float(classes.loss(logits[None], y[None])) == pytest.approx(float(classes.loss(logits, y)))
    scores = torch.zeros(200)
    scores[0], scores[100:] = 1.0, torch.arange(100)
    assert hits.n_right(scores, torch.zeros(200)) == (1, 2)
    assert float(hits.loss(torch.zeros(4), torch.tensor([0, 1, 1, 0]))) == pytest.approx(np.log(2))
