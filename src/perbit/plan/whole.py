"""What tensors that share a spec decide together: the threshold of `topk`, so that important layers keep more; the step of `rd`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.bits import Writer
from perbit.coding.codec import Codec, Pipeline, as_pipeline, stages_of
from perbit.coding.families.rd import RateDistortion
from perbit.coding.families.sparse import SMALLEST, Threshold, TopK, kept
from perbit.frame import header
from perbit.frame.seal import SEAL_BYTES
from perbit.kernels import K
from perbit.kernels.api import F32

_ANY_STEP = 0.0001234  # as long in a frame as any other


def with_common_thresholds(codecs: Mapping[str, Codec], tensors: Mapping[str, NDArray[Any]]) -> dict[str, Codec]:
    """The same codecs, where topk(ratio) at the front becomes the threshold that keeps this ratio of all its tensors together, whatever
    comes after it."""
    result = dict(codecs)
    firsts = {name: stages_of(codec)[0] for name, codec in codecs.items()}
    for first in set(firsts.values()):
        names = [name for name in codecs if firsts[name] == first and tensors[name].size]
        if isinstance(first, TopK) and has_share(first) and first.ratio is not None and names:
            level = common_level([tensors[name] for name in names], first.ratio)
            result |= {name: with_threshold(codecs[name], level) for name in names}
    return result


def with_threshold(codec: Codec, level: float = 0.0) -> Codec:
    """The same codec with a threshold in the place of its topk."""
    first, *rest = stages_of(codec)
    stage = Threshold(level, first.positions) if isinstance(first, TopK) else first
    return Pipeline((stage, *rest)) if rest else stage


def has_share(codec: Codec) -> bool:
    """Whether a codec keeps a share of its values, which tensors can compete for: topk(ratio) at the front."""
    first = stages_of(codec)[0]
    return isinstance(first, TopK) and first.ratio is not None and first.chunk is None


def common_level(tensors: list[NDArray[Any]], ratio: float) -> float:
    """The smallest magnitude among the largest `ratio` of all values together, but no zero.

    NaN and infinity count as zeros here; the encoder refuses them and says where they are.
    """
    with np.errstate(over="ignore"):
        flat: F32 = np.concatenate([np.asarray(x, np.float32).reshape(-1) for x in tensors])
    flat = np.where(np.isfinite(flat), flat, np.float32(0))
    largest = K.top_k(flat, kept(flat.size, ratio, None))
    return max(SMALLEST, float(np.abs(flat[largest]).min()))


def shares_a_step(codec: Codec) -> bool:
    """Whether tensors with this codec have to agree on a step: `rd` by bits or by error."""
    return isinstance(codec, RateDistortion) and codec.step is None


def with_common_steps(codecs: Mapping[str, Codec], tensors: Mapping[str, NDArray[Any]]) -> dict[str, Codec]:
    """The same codecs, where `rd` by bits or by error has the step with which all its tensors together meet it."""
    result = dict(codecs)
    for codec in set(codecs.values()):
        if isinstance(codec, RateDistortion) and codec.step is None:
            own = {name: tensors[name] for name in codecs if codecs[name] == codec}
            floats = [arrays.to_floats(x, name).array for name, x in own.items()]
            result |= dict.fromkeys(own, codec.shared_by(floats, _head_bytes(own, codec)))
    return result


def _head_bytes(tensors: Mapping[str, NDArray[Any]], codec: RateDistortion) -> int:
    """The bytes of a message that are no tensor's payload."""
    pipeline = as_pipeline(replace(codec, step=_ANY_STEP, bits=None, db=None))
    entries = [header.Entry(name, arrays.dtype_name(x.dtype), x.shape, pipeline) for name, x in tensors.items()]
    out = Writer()
    header.write_message(entries, None, None, out)
    return sum(map(len, out.pieces)) + SEAL_BYTES
