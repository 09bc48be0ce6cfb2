"""Which codec each tensor of a model gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perbit.arrays import FLOATS
from perbit.codec import Codec, Shape, as_pipeline, size
from perbit.families.formats import Raw
from perbit.rules import Rule
from perbit.spec import parse

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
    """

    default: Codec
    rules: tuple[tuple[str, Codec], ...] = ()
    small: Codec = Raw()
    small_below: int = 1024
    flat_is_small: bool = True  # one-dimensional tensors (biases, norms) count as small

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
    ) -> Plan:
        """A plan from specs."""
        pairs = rules.items() if isinstance(rules, Mapping) else rules
        named = tuple((pattern, codec(spec)) for pattern, spec in pairs)
        return cls(codec(default), named, codec(small), small_below, flat_is_small)

    def codec_for(self, name: str, shape: Shape, dtype: str = "float32") -> Codec:
        """The codec of one tensor; integers are always raw."""
        if dtype not in FLOATS:
            return Raw()
        for pattern, chosen in self.rules:
            if Rule.of(pattern).matches(name, shape):
                return chosen
        is_small = size(shape) < self.small_below or (self.flat_is_small and len(shape) <= 1)
        return self.small if is_small else self.default


PlanLike = Plan | CodecLike


def as_plan(plan: PlanLike) -> Plan:
    """A plan; a single spec is used for every tensor of floats."""
    if isinstance(plan, Plan):
        return plan
    return Plan(as_pipeline(codec(plan)), small_below=0, flat_is_small=False)
