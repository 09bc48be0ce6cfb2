"""A network's values as named arrays and back: parameters and float buffers travel together, integer counters apart and exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perbit.channels import Layout

if TYPE_CHECKING:
    import torch

Arrays = dict[str, NDArray[Any]]


def masks(network: torch.nn.Module) -> frozenset[str]:
    """Float buffers that hold NaN or infinity from the start, as attention masks hold -inf: they travel bit by bit, beside the counters."""
    import torch

    buffers = ((name, value) for name, value in network.named_buffers() if value.is_floating_point())
    return frozenset(name for name, value in buffers if not bool(torch.isfinite(value).all()))


def floats(network: torch.nn.Module, masked: frozenset[str] = frozenset()) -> Arrays:
    """Copies of all parameters, then of all float buffers (batch norm's running statistics) that are no masks."""
    named = _named(network).items()
    return {name: _array(value) for name, value in named if value.is_floating_point() and name not in masked}


def counters(network: torch.nn.Module, masked: frozenset[str] = frozenset()) -> Arrays:
    """Copies of the buffers that are not floats (batch norm's number of batches), and the bits of the masks."""
    named = _named(network)
    whole = {name: _array(value) for name, value in named.items() if not value.is_floating_point()}
    return whole | {name: _array(named[name]).view(np.int32) for name in sorted(masked)}


def gradients(
    network: torch.nn.Module, before: Mapping[str, NDArray[Any]], masked: frozenset[str] = frozenset()
) -> Arrays:
    """The gradient of each parameter; for float buffers the way back to what they were, as FedAvg would send it."""
    import torch

    found: Arrays = {}
    for name, parameter in network.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found[name] = _array(gradient)
    buffers = ((name, value) for name, value in floats(network, masked).items() if name not in found)
    return found | {name: before[name] - value for name, value in buffers}


def put(network: torch.nn.Module, values: Mapping[str, NDArray[Any]]) -> None:
    """Set parameters and buffers in place; masks come as their bits."""
    import torch

    named = _named(network)
    with torch.no_grad():
        for name, value in values.items():
            is_mask = named[name].is_floating_point() and value.dtype == np.int32
            named[name].copy_(torch.from_numpy(np.array(value.view(np.float32) if is_mask else value)))


def trainable(network: torch.nn.Module, layout: Layout) -> NDArray[np.bool_]:
    """Which values of the flat vector a server optimiser moves: the parameters. Buffers are averaged as they are."""
    return _where(layout, {name for name, _ in network.named_parameters()})


def variances(layout: Layout) -> NDArray[np.bool_]:
    """Which values of the flat vector are running variances of batch or instance norm, by torch's name for them."""
    return _where(layout, {name for name, _ in layout.tensors if name.split(".")[-1] == "running_var"})


def _where(layout: Layout, names: set[str]) -> NDArray[np.bool_]:
    mask = np.zeros(layout.n, np.bool_)
    for (name, _), (lo, hi) in zip(layout.tensors, layout.bounds, strict=True):
        mask[lo:hi] = name in names
    return mask


def _named(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return np.array(tensor.detach().numpy(), order="C")  # a copy, in the order of the indices
