"""How many values each tensor of a model keeps when they share one budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.codec import Codec, stages_of
from perbit.errors import BudgetError
from perbit.families.sparse import TopK
from perbit.template import Template, whole_numbers


class OneForAll:
    """The same value of the free parameter for every tensor."""

    def __init__(self, template: Template, n: int, magnitudes: tuple[float, float]) -> None:
        self.template, self.axis = template, template.axis(n, magnitudes)

    def codecs(self, value: int | float) -> tuple[Codec, dict[str, Codec]]:
        """The codec of all tensors, and the exceptions by name: none."""
        return self.template.fill(value), {}


class GlobalThreshold:
    """All values above one threshold, whichever tensor they are in.

    The last value kept then saves the same squared error in every tensor, so no exchange between tensors helps: of all
    choices of so many values this one has the least error.
    """

    def __init__(self, template: Template, tensors: Mapping[str, NDArray[Any]]) -> None:
        if template.parameter not in ("ratio", "k") or not isinstance(stages_of(template.fill(1))[0], TopK):
            raise BudgetError(
                f"per_tensor shares out the values that topk(?) keeps; {template.text!r} leaves no topk open"
            )
        if not tensors:
            raise BudgetError("there is no tensor to share a budget among")
        self.template = template
        self.magnitudes = {name: np.sort(np.abs(x.astype(np.float32)), axis=None) for name, x in tensors.items()}
        self.all = np.sort(np.concatenate(list(self.magnitudes.values())))
        self.axis = whole_numbers("values kept", len(self.magnitudes), self.all.size)

    def codecs(self, value: int | float) -> tuple[Codec, dict[str, Codec]]:
        """The codec of each tensor by name when `value` values are kept in all; every tensor keeps at least one."""
        level = self.all[self.all.size - int(value)]
        counts = {name: x.size - int(np.searchsorted(x, level)) for name, x in self.magnitudes.items()}
        return self.template.fill(1), {name: self.template.fill(max(1, count)) for name, count in counts.items()}
