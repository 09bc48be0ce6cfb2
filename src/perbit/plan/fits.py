"""Codecs whose quantizer has a distribution given, instead of fitting one to every tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding.codec import Codec, Pipeline, Quantizer, stages_of
from perbit.coding.values import Floats

KEPT, ALL = "kept", "all"  # the values a distribution is fitted to: those that a sparsifier keeps, or all


def held_codec(codec: Codec, x: NDArray[Any]) -> Codec:
    """The same codec, where `fp`, `mwl2` and `lloyd` hold the distribution of these values."""
    if not any(isinstance(stage, Quantizer) for stage in stages_of(codec)):
        return codec
    values = Floats(np.ascontiguousarray(x, np.float32))
    stages = [stage.held(values) if isinstance(stage, Quantizer) else stage for stage in stages_of(codec)]
    return Pipeline(tuple(stages)) if len(stages) > 1 else stages[0]
