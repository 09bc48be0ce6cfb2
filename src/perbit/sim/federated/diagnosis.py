"""Why a run cannot go on: which round, which client, which tensor; and whether the data, the loss or the step is to blame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from perbit.errors import EncodeError
from perbit.sim.federated import local, tensors
from perbit.sim.federated.settings import Task
from perbit.sim.federated.world import World


class NotFinite(EncodeError):  # noqa: N818  the name says what happened
    """A client's update, or the model, holds NaN or infinity."""


def check(world: World, task: Task, client: int, received: Mapping[str, Any], update: Mapping[str, Any]) -> None:
    """Refuse an update that is not finite, and say why it is not."""
    for name, values in update.items():
        n_bad = int(values.size - np.count_nonzero(np.isfinite(values)))
        if n_bad:
            found = f"client {client}: {name} holds NaN or infinity in {n_bad} of {values.size} values"
            raise NotFinite(f"{found}; {_cause(world, task, client, received)}")


def _cause(world: World, task: Task, client: int, received: Mapping[str, Any]) -> str:
    """Look again at what the client had before it trained."""
    part = world.parts[client]
    for sample in part:
        x = world.data.prepare(world.data.train.x[np.asarray([sample])])
        if not np.isfinite(x).all():
            return f"its data are to blame: sample {world.data.train.number(sample)} holds NaN or infinity"
    tensors.put(world.network, received)
    loss = local.mean_loss(world.network, world.data, part)
    if not math.isfinite(loss):
        return f"the loss is to blame: it is {loss} for the model that this client was sent"
    step = "local training" if task.trains_locally else "the gradient"
    return (
        f"its data are finite and so was the loss ({loss:.3g}): {step} went out of bounds; try a smaller rate, or clip"
    )
