"""Loggers of metrics, with stand-ins for the packages: what they are called with is what those packages take."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import perbit
from perbit.torch import ErrorFeedback, loggers


def metrics() -> dict[str, float]:
    coder = ErrorFeedback({"fc.weight": torch.zeros(40, 30)}, "topk(0.1)")
    coder.compress({"fc.weight": torch.ones(40, 30)})
    return coder.metrics() | {"ratio": float("nan")}


class Calls:
    """Remembers the calls of any method."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.made.append((name, args, kwargs))


def package(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def test_tensorboard_gets_a_scalar_for_each_number(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Calls()
    loggers.tensorboard(writer)(metrics())
    given = {args[0]: args[1:] for name, args, _ in writer.made if name == "add_scalar"}
    assert given["perbit/bytes"] == (metrics()["bytes"], 1)
    assert given["perbit/memory_norms/fc.weight"][0] > 0
    assert "perbit/ratio" not in given  # it is NaN
    package(monkeypatch, "torch.utils.tensorboard", SummaryWriter=lambda: writer)
    loggers.tensorboard(prefix="p/")(metrics())
    assert writer.made[-1][1][0].startswith("p/")


def test_wandb_gets_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Calls()
    loggers.wandb(run)(metrics())
    ((name, (row,), options),) = run.made
    assert (name, options) == ("log", {})
    assert row["perbit/step"] == 1
    package(monkeypatch, "wandb", run=run)
    loggers.wandb()(metrics())
    assert len(run.made) == 2
    package(monkeypatch, "wandb", run=None)
    with pytest.raises(perbit.PerbitError, match="no W&B run is going on"):
        loggers.wandb()


def test_mlflow_gets_all_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Calls()
    package(monkeypatch, "mlflow", log_metrics=module.log_metrics)
    loggers.mlflow("some run")(metrics())
    ((_, (row,), options),) = module.made
    assert options == {"step": 1, "run_id": "some run"}
    assert row["perbit/bytes"] == metrics()["bytes"]


def test_prometheus_gets_gauges_and_a_label_for_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[tuple[str, ...], float] = {}

    def gauge(name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
        assert text.startswith("perbit: ")
        assert options == {"registry": "mine"}
        assert name.isidentifier()
        bound = lambda *given: SimpleNamespace(set=lambda value: values.__setitem__((name, *given), value))  # noqa: E731
        return SimpleNamespace(labels=bound) if labels else bound()

    package(monkeypatch, "prometheus_client", Gauge=gauge)
    log = loggers.prometheus("mine")
    log(metrics())
    log(metrics())
    assert values["perbit_bytes",] == metrics()["bytes"]
    assert values["perbit_tensor_memory_norm", "fc.weight"] == values["perbit_memory_norm",] > 0


@pytest.mark.parametrize(
    ("name", "module", "needed"),
    [
        ("tensorboard", "torch.utils.tensorboard", "tensorboard"), ("wandb", "wandb", "wandb"), ("mlflow", "mlflow", "mlflow"),
        ("prometheus", "prometheus_client", "prometheus-client"),
    ],
)  # fmt: skip
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str, module: str, needed: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(perbit.PerbitError, match=f"pip install {needed}"):
        getattr(loggers, name)()


def test_no_name_is_the_folder_of_another() -> None:
    """MLflow's files have one for each name, with folders for its slashes."""
    names = metrics().keys()
    assert not [(one, other) for one in names for other in names if other.startswith(f"{one}/")]
