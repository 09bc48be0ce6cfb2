"""What is not finite is named: the round, the client, the tensor, and what is to blame; masks of -inf are no such thing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perbit.cli import main
from perbit.sim.dataset import DataError
from perbit.sim.federated import run, tensors, world
from perbit.sim.federated.settings import Method, SettingsError, Task
from perbit.sim.imports import OwnCodeError

CODE = """
import numpy as np, torch
rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
def data(): return (X[:60], Y[:60]), (X[60:], Y[60:])
class Spoilt(torch.utils.data.Dataset):
    def __len__(self): return 60
    def __getitem__(self, i): return (X[i] * np.nan if i == 37 else X[i]), Y[i]
def spoilt(): return Spoilt(), (X[60:], Y[60:])
class Masked(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
    def forward(self, x): return super().forward(x) + torch.softmax(self.mask, dim=1).sum()
class Nothing(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.bias.data[1] = torch.nan
CALLS = []
def fails_later(outputs, y):
    loss = torch.nn.functional.cross_entropy(outputs, y)
    CALLS.append(1)
    return loss if len(CALLS) < 9 else loss * torch.nan
def no_metric(outputs, y): return float("nan")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "spoilt", raising=False)
    world._data.cache_clear()
    Path("spoilt.py").write_text(CODE)


def task(**changes: Any) -> Task:
    return Task(**{"data": "spoilt:data", "model": "logistic", "clients": 3, "rounds": 4, **changes})


def outcome(**changes: Any) -> dict[str, Any]:
    return run(task(**changes), Method("float32"), 0, Path("run"))


def test_a_mask_of_minus_infinity_travels_exactly_and_harms_nothing() -> None:
    done = outcome(model="spoilt:Masked")
    assert not done["diverged"]
    assert done["done"] == 4
    place = world.build(task(model="spoilt:Masked"), 0)
    bits = tensors.counters(place.network, place.masked)["mask"]
    assert bits.view(np.float32).tolist() == [[0.0, -np.inf], [0.0, 0.0]]
    tensors.put(place.network, {"mask": np.zeros((2, 2), np.int32)})
    tensors.put(place.network, {"mask": bits})
    assert place.network.mask.tolist() == [[0.0, -np.inf], [0.0, 0.0]]  # type: ignore[union-attr,operator]


def test_data_that_are_fetched_later_are_named_by_sample_and_client() -> None:
    done = outcome(data="spoilt:spoilt")
    assert done["diverged"]
    assert done["why"].startswith("round 1, client ")
    assert "1.weight holds NaN or infinity in 8 of 8 values" in done["why"]
    assert "its data are to blame: sample 37" in done["why"]


def test_a_loss_is_named() -> None:
    assert "the loss is to blame: it is nan" in outcome(loss="spoilt:fails_later")["why"]


def test_a_step_that_is_too_large_is_named() -> None:
    why = outcome(rate=1e38, data="digits", model="mlp", train_samples=100, test_samples=20)["why"]
    assert "local training went out of bounds; try a smaller rate" in why


def test_a_model_that_starts_so_is_refused() -> None:
    with pytest.raises(SettingsError, match="starts with NaN or infinity in its parameter bias"):
        world.build(task(model="spoilt:Nothing"), 0)


def test_a_metric_that_is_no_number_is_refused() -> None:
    with pytest.raises(OwnCodeError, match="nan before the first round"):
        outcome(metric="spoilt:no_metric")


def test_a_comparison_without_a_result_says_why_fails_and_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    methods = '[[methods]]\nname = "float32"\n[[methods]]\nname = "coarse"\nup = "uniform(4) | rans"\n'
    settings = 'data = "spoilt:spoilt"\nmodel = "logistic"\nclients = 3\nrounds = 2\n'
    Path("bad.toml").write_text(f"[task]\n{settings}{methods}")
    assert main(["compare", "bad.toml", "--processes", "1"]) == 1
    said = capsys.readouterr().out
    assert "No compressed method finished training" in said
    assert "float32 diverged: seed 0, round 1, client" in said
    assert "try a smaller rate" not in said
    folder = Path("perbit-runs/bad")
    assert not list(folder.glob("*.png"))
    page = (folder / "report.html").read_text()
    assert '<div class="live"' not in page
    assert '<script type="text/plain" id="charting">' not in page


def test_train_fails_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", "spoilt:spoilt", "--model", "logistic", "--clients", "3", "--rounds", "1"]
    assert main(["train", *options, "--json"]) == 1
    assert "sample 37" in json.loads(capsys.readouterr().out)["why"]


def test_a_sample_is_named_by_its_number_in_the_users_file() -> None:
    """Also where perbit itself has cut the file into a train and a test part, or draws the test part anew."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 4)).astype(np.float32), np.arange(80) % 2
    x[61] = np.nan
    np.savez("own.npz", x=x, y=y)
    with pytest.raises(DataError, match="1 of 64 samples, the first is number 61"):
        world.build(task(data="./own.npz"), 0)
    done = outcome(data="spoilt:spoilt", test_share=0.01, clients=1)
    assert "its data are to blame: sample 37" in done["why"]


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_of_the_test_is_below_one(share: float) -> None:
    with pytest.raises(SettingsError, match="test_share must be from 0 up to, not including, 1"):
        task(test_share=share)


def test_each_seed_draws_a_test_part_of_its_own() -> None:
    first, second, again = (
        world.build(task(data="digits", model="mlp", test_share=0.2), seed).data for seed in (0, 1, 0)
    )
    assert len(first.test) == len(second.test) == 359
    assert len(first.train) == 1438
    assert set(first.train.numbers).isdisjoint(first.test.numbers)
    assert set(first.test.numbers) != set(second.test.numbers)
    assert list(first.test.numbers) == list(again.test.numbers)
