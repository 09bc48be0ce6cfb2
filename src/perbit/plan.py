"""Which codec each tensor of a model gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from perbit.arrays import FLOATS, dtype_name
from perbit.codec import Codec, as_pipeline
from perbit.families.formats import Raw
from perbit.families.whole import with_common_thresholds
from perbit.rules import Rule
from perbit.spec import parse
from perbit.values import Shape, size

CodecLike = Codec | str


def codec(spec: CodecLike) -> Codec:
    """A codec from its spec (codecs pass through).

    >>> str(codec("topk(ratio=0.01,positions=bitmap())|fp16"))
    'topk(0.01, positions=bitmap) | fp16'
    """
    return parse(spec) if isinstance(spec, str) else spec


@dataclass(frozen=True)
class Plan:
    """The default codec, exceptions by rule (perbit.rules; first match wins), and what small or one-dimensional tensors get.

    >>> plan = Plan.of("topk(0.01) | qsgd(15) | rans", rules={"embed*": "topk(0.001)"})
    >>> str(plan.codec_for("fc.weight", (512, 512)))
    'topk(0.01) | qsgd(15) | rans'
    >>> str(plan.codec_for("fc.bias", (512,))), str(plan.codec_for("embed.weight", (9, 512)))
    ('raw', 'topk(0.001)')
    >>> str(Plan.of("fp16", rules={"dims:4 size:5000..": "topk(0.1)"}).codec_for("conv", (32, 32, 3, 3)))
    'topk(0.1)'

    With `whole_model` the large values of all tensors compete, instead of each tensor keeping its share:

    >>> import numpy as np
    >>> tensors = {"a": np.arange(2000.0).reshape(2, 1000), "b": np.ones((2, 1000))}
    >>> shared = Plan.of("topk(0.25) | fp16", whole_model=True).codecs(tensors)
    >>> {name: str(chosen) for name, chosen in shared.items()}
    {'a': 'threshold(1000.0) | fp16', 'b': 'threshold(1000.0) | fp16'}
    """

    default: Codec
    rules: tuple[tuple[str, Codec], ...] = ()
    small: Codec = Raw()
    small_below: int = 1024
    flat_is_small: bool = True  # one-dimensional tensors (biases, norms) count as small
    whole_model: bool = False  # topk(ratio) keeps that share of all its tensors together: one threshold for the model

    def __post_init__(self) -> None:
        for text, _ in self.rules:
            Rule.of(text)  # a rule that cannot be read is refused here, not at the first tensor

    @classmethod
    def of(
        cls,
        default: CodecLike,
        rules: Mapping[str, CodecLike] | Iterable[tuple[str, CodecLike]] = (),
        small: CodecLike = "raw",
        small_below: int = 1024,
        flat_is_small: bool = True,
        whole_model: bool = False,
    ) -> Plan:
        """A plan from specs."""
        pairs = rules.items() if isinstance(rules, Mapping) else rules
        named = tuple((pattern, codec(spec)) for pattern, spec in pairs)
        return cls(codec(default), named, codec(small), small_below, flat_is_small, whole_model)

    def codec_for(self, name: str, shape: Shape, dtype: str = "float32") -> Codec:
        """The codec of one tensor; integers are always raw."""
        if dtype not in FLOATS:
            return Raw()
        for pattern, chosen in self.rules:
            if Rule.of(pattern).matches(name, shape):
                return chosen
        is_small = size(shape) < self.small_below or (self.flat_is_small and len(shape) <= 1)
        return self.small if is_small else self.default

    @property
    def looks_at_values(self) -> bool:
        """Whether the codecs depend on the values of the tensors, not on their names and shapes alone."""
        return self.whole_model

    def codecs(self, tensors: Mapping[str, NDArray[Any]], seed: int | None = 0) -> dict[str, Codec]:
        """The codec of every tensor of a message."""
        chosen = {name: self.codec_for(name, x.shape, dtype_name(x.dtype)) for name, x in tensors.items()}
        return with_common_thresholds(chosen, tensors) if self.whole_model else chosen


PlanLike = Plan | CodecLike


def as_plan(plan: PlanLike) -> Plan:
    """A plan; a single spec is used for every tensor of floats."""
    if isinstance(plan, Plan):
        return plan
    return Plan(as_pipeline(codec(plan)), small_below=0, flat_is_small=False)
