"""Top-k over a whole model: one threshold for all tensors that share a spec, so that important layers keep more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding.codec import Codec, Pipeline, stages_of
from perbit.coding.families.sparse import SMALLEST, Threshold, TopK, kept
from perbit.kernels import K
from perbit.kernels.api import F32


def with_common_thresholds(codecs: Mapping[str, Codec], tensors: Mapping[str, NDArray[Any]]) -> dict[str, Codec]:
    """The same codecs, where topk(ratio) at the front becomes the threshold that keeps this ratio of all its tensors together."""
    result = dict(codecs)
    for codec in set(codecs.values()):
        first, *rest = stages_of(codec)
        names = [name for name in codecs if codecs[name] == codec and tensors[name].size]
        if isinstance(first, TopK) and first.ratio is not None and names:
            level = common_level([tensors[name] for name in names], first.ratio)
            stage = Threshold(level, first.positions)
            result |= dict.fromkeys(names, Pipeline((stage, *rest)) if rest else stage)
    return result


def has_share(codec: Codec) -> bool:
    """Whether a codec keeps a share of its values, which tensors can compete for: topk(ratio) at the front."""
    first = stages_of(codec)[0]
    return isinstance(first, TopK) and first.ratio is not None


def common_level(tensors: list[NDArray[Any]], ratio: float) -> float:
    """The smallest magnitude among the largest `ratio` of all values together, but no zero.

    NaN and infinity count as zeros here; the encoder refuses them and says where they are.
    """
    with np.errstate(over="ignore"):
        flat: F32 = np.concatenate([np.asarray(x, np.float32).reshape(-1) for x in tensors])
    flat = np.where(np.isfinite(flat), flat, np.float32(0))
    largest = K.top_k(flat, kept(flat.size, ratio, None))
    return max(SMALLEST, float(np.abs(flat[largest]).min()))
