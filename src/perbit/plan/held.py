"""Plans that hold a distribution: what quantizers would fit to every tensor is fitted once and stays.

CO₃ refits its scales every few epochs and gives all users one code a layer; M22's non-adaptive variant freezes shape and scale after a
boot-up phase. Both take the tensors of that time and `hold`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.codec import Codec, stages_of
from perbit.coding.families.sparse import Threshold, TopK
from perbit.errors import SpecError
from perbit.plan.budget import Budget
from perbit.plan.fits import ALL, KEPT, held_codec
from perbit.plan.plan import Chooser, PlanLike, as_plan, check_fit
from perbit.plan.whole import common_level


def hold(plan: PlanLike, tensors: Mapping[str, Any], of: str = KEPT) -> Chooser:
    """The plan, where `fp`, `mwl2` and `lloyd` hold what they fit to these tensors, each tensor by itself.

    Args:
        plan: a spec or a plan.
        tensors: arrays or torch tensors by name, such as the mean of what was sent in an epoch. Those of other names are fitted as before.
        of: fit the values that `topk` in front of the quantizer would keep ("kept"), or "all".

    >>> held = hold('fp(2, 1) | huffman(prior="always")', {"w": np.random.default_rng(0).laplace(size=(64, 64))})
    >>> str(held.codec_for("w", (64, 64)))
    'fp(2, 1, beta=0.957603, std=1.4236) | huffman("always")'
    """
    check_fit(of)
    chooser = as_plan(plan)
    if isinstance(chooser, Budget):
        raise SpecError("a Budget looks for a codec in every message, and cannot hold a fit; give a spec or a Plan")
    named = {name: arrays.as_numpy(x) for name, x in tensors.items()}
    kept = named if of == ALL else _kept(chooser, named)
    rules = []
    for name, x in named.items():
        chosen = chooser.codec_for(name, x.shape, arrays.dtype_name(x.dtype))
        held = held_codec(chosen, kept[name])
        if held != chosen:
            rules.append((json.dumps(name), held))
    return replace(chooser, rules=(*rules, *chooser.rules))


def _kept(chooser: Chooser, named: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The values of each tensor that its sparsifier keeps."""
    codecs = chooser.codecs(dict(named))
    return {name: x[np.abs(x) >= _least(codecs[name], x)] for name, x in named.items()}


def _least(codec: Codec, x: NDArray[Any]) -> float:
    """The magnitude from which a sparsifier at the front keeps values."""
    first = stages_of(codec)[0]
    if isinstance(first, Threshold):
        return first.level
    if isinstance(first, TopK) and x.size:
        return common_level([x], first.ratio if first.ratio is not None else min(1.0, (first.k or 1) / x.size))
    return 0.0
