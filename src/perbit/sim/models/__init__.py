"""Models by name, or any torch.nn.Module by import path "package.module:Class". Torch loads when a model is built, not before."""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from perbit.errors import PerbitError
from perbit.sim.data.dataset import Info

if TYPE_CHECKING:
    import torch

_HERE = "perbit.sim.models"
MODELS: dict[str, str] = {
    "cnn": f"{_HERE}.images:TableOneCNN",
    "lenet": f"{_HERE}.lenet:LeNet",
    "lenet-mnist": f"{_HERE}.lenet:MnistCNN",
    "lenet-fashion": f"{_HERE}.lenet:FashionSimpleNet",
    "resnet20": f"{_HERE}.images:ResNet20",
    "densenet40": f"{_HERE}.images:DenseNet40",
    "lstm": f"{_HERE}.sequences:NextWordLSTM",
    "char-lstm": f"{_HERE}.sequences:CharLSTM",
    "ncf": f"{_HERE}.tables:NeuMF",
    "logistic": f"{_HERE}.tables:Logistic",
    "mlp": f"{_HERE}.tables:MLP",
    "series-cnn": f"{_HERE}.sequences:SeriesCNN",
}


class ModelError(PerbitError):
    """A model that is unknown, cannot be imported, or does not fit the data."""


def build(name: str, info: Info) -> torch.nn.Module:
    """The model for this data set, with fresh weights from torch's global generator (seed it first)."""
    model = _make(_find(name), info)
    _check(name, model, info)
    return model


def count(model: torch.nn.Module, moving_statistics: bool = False) -> int:
    """Trainable parameters; with `moving_statistics`, batch norm's running means and variances too (Keras counts them)."""
    n = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if moving_statistics:
        n += sum(b.numel() for b in model.buffers() if b.is_floating_point())
    return n


def _find(name: str) -> Any:
    path = MODELS.get(name, name)
    if ":" not in path:
        close = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(MODELS)}."
        raise ModelError(f'there is no model {name}; {hint} A class of yours is named "package.module:Class".')
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ModelError("models need the package torch: pip install perbit[torch]") from None
        raise ModelError(f"the model {name} cannot be imported: {error}") from error
    except (ImportError, AttributeError) as error:
        raise ModelError(f"the model {name} cannot be imported: {error}") from error


def _make(cls: Any, info: Info) -> torch.nn.Module:
    """A class that takes `info` gets the data set's; any other is called without arguments."""
    import torch

    try:
        model = cls(info) if "info" in inspect.signature(cls).parameters else cls()
    except (TypeError, ValueError) as error:
        raise ModelError(f"the model {cls.__name__} cannot be built for {info.name}: {error}") from error
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"{cls.__name__} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _check(name: str, model: torch.nn.Module, info: Info) -> None:
    """Two zero samples go through: a model that does not fit its data says so now, in one sentence, not in round 1."""
    import torch

    whole = info.kind in ("text", "ratings")
    x = torch.zeros((2, *info.input_shape), dtype=torch.int64 if whole else torch.float32)
    expected: tuple[int, ...] = (2, info.n_classes)
    if info.kind == "text":
        expected = (2, *info.input_shape, info.n_classes)
    elif info.kind == "ratings":
        expected = (2,)
    was_training = model.training
    try:
        with torch.no_grad():
            got = tuple(model.eval()(x).shape)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"the model {name} does not fit {info.name} (samples of shape {info.input_shape}): {reason}"
        ) from error
    model.train(was_training)
    if got != expected:
        raise ModelError(f"the model {name} does not fit {info.name}: it gives {got} for two samples, not {expected}")
