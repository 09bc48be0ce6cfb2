"""A whole model as one message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perbit.coding import arrays
from perbit.frame import wire
from perbit.plan.plan import PlanLike, as_plan


def dumps(
    tensors: Mapping[str, Any],
    plan: PlanLike,
    *,
    seed: int | None = None,
    sequence: int | None = None,
    digest: bytes | None = None,
) -> bytes:
    """Encode all tensors of a model as one message.

    Args:
        tensors: arrays or torch tensors by name.
        plan: a spec for the large tensors (small and one-dimensional ones then go as they are), a Plan, or a Budget.
        seed: fixes every random choice.
        sequence, digest: for channels: the number of the frame, and the memory it was made against.

    >>> import numpy as np, perbit
    >>> frame = perbit.dumps({"w": np.ones((32, 32), np.float32), "steps": np.array(3)}, "uniform(4) | rans")
    >>> {name: value.dtype.name for name, value in perbit.loads(frame).items()}
    {'w': 'float32', 'steps': 'int64'}
    """
    named = {name: arrays.as_numpy(x) for name, x in tensors.items()}
    return wire.write(named, as_plan(plan).codecs(named, seed), seed=seed, sequence=sequence, digest=digest)
