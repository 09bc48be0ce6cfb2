"""Server optimisers: from the mean of what the clients sent to the change of the model, after decoding (Reddi et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perbit.sim.federated.settings import Task

F64 = NDArray[np.float64]
_BETA1, _BETA2, _EPSILON = 0.9, 0.99, 1e-3  # the defaults of "Adaptive federated optimization"


@dataclass(frozen=True, eq=False)
class Moments:
    """What a server optimiser remembers: nothing, a momentum, or Adam's two moments and its count."""

    first: F64 | None = None
    second: F64 | None = None
    steps: int = 0


def step(task: Task, mask: NDArray[np.bool_], now: Moments, mean: F64) -> tuple[F64, Moments]:
    """The change and the new moments. Values outside the mask (buffers) are moved by exactly what the clients say."""
    change, after = _adam(task, now, mean) if task.server == "adam" else _sgd(task, now, mean)
    return np.where(mask, change, -mean), after


def _sgd(task: Task, now: Moments, mean: F64) -> tuple[F64, Moments]:
    if not task.server_momentum:
        return -task.server_rate * mean, now
    velocity = mean if now.first is None else task.server_momentum * now.first + mean
    return -task.server_rate * velocity, replace(now, first=velocity)


def _adam(task: Task, now: Moments, mean: F64) -> tuple[F64, Moments]:
    beta1 = task.server_momentum or _BETA1
    first = (1 - beta1) * mean if now.first is None else beta1 * now.first + (1 - beta1) * mean
    second = (1 - _BETA2) * mean**2 if now.second is None else _BETA2 * now.second + (1 - _BETA2) * mean**2
    steps = now.steps + 1
    unbiased_first, unbiased_second = first / (1 - beta1**steps), second / (1 - _BETA2**steps)
    change = -task.server_rate * unbiased_first / (np.sqrt(unbiased_second) + _EPSILON)
    return change, Moments(first, second, steps)
