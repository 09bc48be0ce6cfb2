"""Where `state.metrics()` may go. Each function gives a `log` that takes metrics; packages are imported when they are asked for.

log = perbit.torch.loggers.tensorboard(writer)
log(state.metrics())
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from perbit.errors import PerbitError

Metrics = Mapping[str, float]
Log = Callable[[Metrics], None]
_TENSOR = "memory_norms/"  # what the names of tensors' own metrics begin with


def tensorboard(writer: Any = None, prefix: str = "perbit/") -> Log:
    """Scalars of a TensorBoard `SummaryWriter`; None: a new one, in its default folder."""
    target = writer or _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter()

    def log(metrics: Metrics) -> None:
        for name, value in _finite(metrics).items():
            target.add_scalar(f"{prefix}{name}", value, int(metrics["step"]))

    return log


def wandb(run: Any = None, prefix: str = "perbit/") -> Log:
    """A run of Weights & Biases; None: the one that is going on. The run counts its own steps; ours is `perbit/step`."""
    target = run or _imported("wandb").run
    if target is None:
        raise PerbitError("no W&B run is going on; call wandb.init() first, or pass a run")
    return lambda metrics: target.log({f"{prefix}{name}": value for name, value in _finite(metrics).items()})


def mlflow(run_id: str | None = None, prefix: str = "perbit/") -> Log:
    """A run of MLflow by its id; None: the active one."""
    module = _imported("mlflow")

    def log(metrics: Metrics) -> None:
        named = {f"{prefix}{name}": value for name, value in _finite(metrics).items()}
        module.log_metrics(named, step=int(metrics["step"]), run_id=run_id)

    return log


def prometheus(registry: Any = None, prefix: str = "perbit_") -> Log:
    """Gauges of prometheus-client; None: in its default registry. Norms of single tensors are one gauge with the label `tensor`."""
    module = _imported("prometheus_client", "prometheus-client")
    options = {} if registry is None else {"registry": registry}
    gauges: dict[str, Any] = {}

    def gauge(name: str, labels: tuple[str, ...] = ()) -> Any:
        if name not in gauges:
            gauges[name] = module.Gauge(f"{prefix}{name}", f"perbit: {name.replace('_', ' ')}", labels, **options)
        return gauges[name]

    def log(metrics: Metrics) -> None:
        for name, value in _finite(metrics).items():
            if name.startswith(_TENSOR):
                gauge("tensor_memory_norm", ("tensor",)).labels(name.removeprefix(_TENSOR)).set(value)
            else:
                gauge(name).set(value)

    return log


def _finite(metrics: Metrics) -> dict[str, float]:
    """A ratio is NaN before anything was sent; loggers do not like that."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _imported(module: str, package: str | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        needed = package or module
        raise PerbitError(f"this logger needs the package {needed}: pip install {needed}") from None
