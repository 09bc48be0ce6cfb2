"""Statistics through training: how one client's updates are distributed, layer by layer, once an epoch (`perbit compare --statistics`).

For the update g and, where the uplink has an error memory m with decay γ, for g + γm, which is what is quantized: the fitted GenNorm, its W₂
distance and those of the normal and the Laplace distribution, the excess kurtosis, mean and variance; and the mean magnitudes of g and of m.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from perbit.channels import ErrorFeedback
from perbit.gennorm import fit, fit_laplace, fit_normal, kurtosis, wasserstein
from perbit.kernels.api import F32
from perbit.sim.federated.rounds import Federation
from perbit.sim.federated.settings import Task
from perbit.sim.federated.world import World

FILE = "statistics.jsonl"
FEWEST = 100  # values below which a fit says little
MOST = 1 << 14  # values that are looked at; of larger tensors as many are drawn

Line = dict[str, Any]


def rounds_in_epoch(task: Task, world: World) -> int:
    """After how many rounds a client has seen its samples once: one, if it trains whole epochs."""
    if task.local_epochs and not task.local_steps:
        return 1
    a_round = task.batch * max(1, task.local_steps)
    return max(1, math.ceil(max(len(part) for part in world.parts) / a_round))


def memory_of(federation: Federation, client: int) -> tuple[float, dict[str, F32]]:
    """γ and what a client's error memory holds now; nothing if there is none."""
    holding = federation.clients[client].state
    if holding is None or not isinstance(holding.terms.uplink, ErrorFeedback):
        return 0.0, {}
    state = holding.now.up
    return holding.terms.uplink.gamma(state.layout), state.layout.split(state.memory[0])


def lines(epoch: int, number: int, update: dict[str, Any], gamma: float, memory: dict[str, F32]) -> list[Line]:
    """What is recorded of a round: a line for each tensor of some size."""
    made = []
    for name, g in update.items():
        if g.size < FEWEST:
            continue
        line: Line = {
            "epoch": epoch,
            "round": number,
            "tensor": name,
            "g": described(g),
            "l1_gradient": _mean_magnitude(g),
        }
        if name in memory:
            line |= {"g+m": described(g + np.float32(gamma) * memory[name]), "l1_memory": _mean_magnitude(memory[name])}
        made.append(line)
    return made


def described(x: F32) -> dict[str, float] | None:
    """The fit and its distances; None where the values allow none.

    >>> from perbit.gennorm import GenNorm
    >>> found = described(GenNorm(beta=0.7, alpha=1e-3).sample(50_000, seed=1))
    >>> abs(found["beta"] - 0.7) < 0.05, min(("normal", "laplace", "gennorm"), key=found.get)
    (True, 'gennorm')
    """
    values = x.reshape(-1)
    values = values[values != 0]
    if values.size > MOST:
        values = np.random.default_rng(0).choice(values, MOST, replace=False, shuffle=False)
    if values.size < FEWEST or values.min() == values.max():
        return None
    fitted = fit(values).dist
    families = {"normal": fit_normal(values), "laplace": fit_laplace(values), "gennorm": fitted}
    distances = {family: wasserstein(values, dist, p=2) for family, dist in families.items()}
    moments = {"mean": float(values.mean(dtype=np.float64)), "variance": float(values.var(dtype=np.float64))}
    found = {"beta": fitted.beta, "alpha": fitted.alpha, "kurtosis": kurtosis(values), **moments, **distances}
    return {key: float(value) for key, value in found.items()}


def _mean_magnitude(x: F32) -> float:
    return float(np.abs(x).mean(dtype=np.float64))


class Recorder:
    """Looks at a run once an epoch; `before` a round at the memory of the first client that takes part, `after` it at its update."""

    def __init__(self, task: Task, world: World, federation: Federation) -> None:
        self.every, self.federation = rounds_in_epoch(task, world), federation
        self._seen: tuple[float, dict[str, F32]] = 0.0, {}

    def is_due(self, number: int) -> bool:
        return (number - 1) % self.every == 0

    def before(self, client: int) -> None:
        self._seen = memory_of(self.federation, client)

    def after(self, number: int, update: dict[str, Any]) -> list[Line]:
        return lines(1 + (number - 1) // self.every, number, update, *self._seen)
