"""A loss and a metric of the user's own, in place of those of the data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from perbit.sim.dataset import DataError, Dataset, Objective
from perbit.sim.imports import OwnCodeError, imported_function

if TYPE_CHECKING:
    from torch import Tensor


class Own(Objective):
    """What the user's functions say; where there is none, what the data say.

    Args:
        base: the objective of the data.
        loss: "module:function" from outputs and targets of a mini-batch to a scalar tensor, or "".
        metric: "module:function" from all outputs and targets of the test to a number, larger is better, or "".
    """

    def __init__(self, base: Objective, loss: str, metric: str) -> None:
        self.base, self.names = base, (loss, metric)
        self.own_loss = imported_function("loss", loss) if loss else None
        self.metric = imported_function("metric", metric) if metric else None

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.own_loss is None:
            return self.base.loss(outputs, y)
        value: Tensor = self.own_loss(outputs, y)
        if not (hasattr(value, "backward") and value.numel() == 1):
            got = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
            raise OwnCodeError(f"loss {self.names[0]} must return a tensor with one number, not {got}")
        return value

    def score(self, judged: Iterable[tuple[Tensor, Tensor]]) -> float:
        if self.metric is None:
            return self.base.score(judged)
        import torch

        parts = list(judged)
        outputs, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        value = self.metric(outputs, y)
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise OwnCodeError(f"metric {self.names[1]} must return one number, not a {type(value).__name__}") from None
        return number if math.isfinite(number) else math.nan


def with_own(data: Dataset, loss: str, metric: str) -> Dataset:
    """The data with the user's loss and metric; targets that are no classes need both."""
    if not data.n_classes and not (loss and metric):
        missing = "loss" if not loss else "metric"
        said = f'no classes, so name a {missing} of your own: {missing} = "module:function"'
        hint = "" if loss else ' (for numbers, loss = "torch.nn.functional:mse_loss")'
        raise DataError(f"the targets of {data.info.name} are {said}{hint}")
    if not loss and not metric:
        return data
    info = replace(data.info, kind="own") if loss and data.info.kind != "text" else data.info
    return replace(data, info=info, objective=Own(data.objective, loss, metric))
