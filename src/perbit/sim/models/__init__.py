"""Models by name, perbit's own or a plug-in's, or any torch.nn.Module by import path "package.module:Class". Torch loads when a model is built."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from perbit import plugins
from perbit.errors import PerbitError
from perbit.sim.dataset import WHOLE_NUMBERS, Info
from perbit.sim.imports import OwnCodeError, imported

if TYPE_CHECKING:
    import torch

_SIMPLE = {"logistic": "Logistic", "mlp": "MLP", "mlp-128": "DeepMLP", "mlp-wide": "WideMLP", "small-cnn": "SmallCNN"}
MODELS = {name: f"perbit.sim.models.simple:{cls}" for name, cls in _SIMPLE.items()}


class ModelError(PerbitError):
    """A model that is unknown, cannot be imported, or does not fit the data."""


def build(name: str, info: Info) -> torch.nn.Module:
    """The model for this data set, with fresh weights from torch's global generator (seed it first)."""
    model = _make(_find(name), info)
    _check(name, model, info)
    return model


def seeded(name: str, info: Info, seed: int) -> torch.nn.Module:
    """The same with weights drawn from this seed, in training mode; dropout continues from the same generator."""
    import torch

    torch.manual_seed(seed)
    return build(name, info).train()


def _find(name: str) -> Any:
    path = MODELS.get(name, name)
    if ":" not in path:
        found = plugins.find("model", name)
        if found is None:
            said = plugins.unknown("model", name, MODELS)
            raise ModelError(f'{said} (a class of yours is named "package.module:Class")')
        return found
    try:
        return imported("model", path)
    except OwnCodeError as error:
        raise ModelError(f"the {error}") from error


def _make(cls: Any, info: Info) -> torch.nn.Module:
    """A class that takes `info` gets the data set's; any other is called without arguments."""
    import torch

    try:
        model = cls(info) if "info" in inspect.signature(cls).parameters else cls()
    except Exception as error:  # whatever the user's class raises
        raise ModelError(f"the model {cls.__name__} cannot be built for {info.name}: {error}") from error
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"{cls.__name__} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _check(name: str, model: torch.nn.Module, info: Info) -> None:
    """Two zero samples go through: a model that does not fit its data says so now, in one sentence, not in round 1."""
    import torch

    whole = info.kind in WHOLE_NUMBERS
    x = torch.zeros((2, *info.input_shape), dtype=torch.int64 if whole else torch.float32)
    was_training = model.training
    try:
        with torch.no_grad():
            got = tuple(model.eval()(x).shape)
    except Exception as error:  # whatever the user's class raises
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"the model {name} does not fit {info.name} (samples of shape {info.input_shape}): {reason}"
        ) from error
    model.train(was_training)
    expected = info.output_shape
    if expected is not None and got != (2, *expected):
        raise ModelError(
            f"the model {name} does not fit {info.name}: it gives {got} for two samples, not {(2, *expected)}"
        )
