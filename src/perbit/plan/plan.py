"""Which codec each tensor of a model gets. Here is decided, once and for everybody, what a bare spec means.

A spec such as "topk(0.01) | qsgd(15) | rans" codes the large tensors of a model. Small and one-dimensional ones (biases, norms, the running
statistics of batch norm) go as they are: they are a percent of the values, and a variance that a coarse codec pushes below zero ruins a model.
Codecs that are good for small tensors too, such as `rd`, code them as well; running statistics still go as they are.
A lone array, which has no name, is always coded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from perbit.coding.agreed import Agreed
from perbit.coding.arrays import FLOATS, dtype_name
from perbit.coding.codec import Codec, as_pipeline, stages_of
from perbit.coding.families.formats import Raw
from perbit.coding.spec import CodecLike, codec
from perbit.coding.values import Shape, size
from perbit.errors import SpecError
from perbit.plan.fits import ALL, KEPT, held_codec
from perbit.plan.rules import Rule
from perbit.plan.whole import has_share, shares_a_step, with_common_steps, with_common_thresholds, with_threshold

Rules = Mapping[str, CodecLike] | Iterable[tuple[str, CodecLike]]
SAME = "same"  # for `small`, in text: no exception for small tensors
AUTO = "auto"  # for `small`: raw, but the default where that is a codec for small tensors too
_RUNNING = ("running_mean", "running_var")


@dataclass(frozen=True)
class Chooser(ABC):
    """Given tensors, which codec for each: what `Plan` and `Budget` have in common.

    Args:
        default: the codec of every tensor that no rule names and that is not small.
        rules: exceptions, as pairs of a rule (perbit.plan.rules) and a spec, or a dict; the first match wins.
        small: the codec of small tensors; None or "same": the default; "auto": raw, or the default if it is good for them (`rd`).
        small_below: tensors with fewer values are small.
        flat_is_small: so are tensors with one dimension, or none.
    """

    default: Codec
    rules: tuple[tuple[str, Codec], ...] = ()
    small: Codec | None = AUTO  # type: ignore[assignment]
    small_below: int = 1024
    flat_is_small: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", _checked(self.default))
        object.__setattr__(self, "rules", _checked_rules(self.rules))
        small: object = self.small
        if small == AUTO:
            small = None if stages_of(self.default)[0].codes_small else Raw()
        object.__setattr__(self, "small", None if small in (None, SAME) else _checked(small))

    def exception_for(self, name: str, shape: Shape, dtype: str = "float32") -> Codec | None:
        """The codec of a tensor that does not get the default one. Integers are always raw."""
        if dtype not in FLOATS:
            return Raw()
        for rule, chosen in self.rules:
            if Rule.of(rule).matches(name, shape):
                return chosen
        if stages_of(self.default)[0].codes_small and name.endswith(_RUNNING):
            return Raw()
        is_small = name != "" and (size(shape) < self.small_below or (self.flat_is_small and len(shape) <= 1))
        return self.small if is_small else None

    def codec_for(self, name: str, shape: Shape, dtype: str = "float32") -> Codec:
        """The codec of one tensor, as far as its name, shape and dtype tell."""
        return self.exception_for(name, shape, dtype) or self.default

    @property
    def all_codecs(self) -> tuple[Codec, ...]:
        """Every codec that a tensor of floats may get."""
        small = () if self.small is None else (self.small,)
        return (self.default, *(chosen for _, chosen in self.rules), *small)

    @property
    def agreed(self) -> Agreed:
        """What a receiver of this plan's messages takes, and nothing else: `perbit.loads(frame, codecs=plan.agreed)`.

        >>> sorted(Plan.of("topk(0.01) | fp16", whole_model=True).agreed.forms)
        ['raw', 'threshold(positions=golomb) | fp16', 'topk(positions=golomb) | fp16']
        """
        forms = [Raw(), *self.all_codecs]  # integers and running statistics are always raw
        return Agreed.of([*forms, *map(with_threshold, filter(has_share, forms))] if self.needs_whole_model else forms)

    @property
    def needs_whole_model(self) -> bool:
        """Whether no tensor's codec can be told without the values of all the others."""
        return False

    @property
    def looks_at_values(self) -> bool:
        """Whether `codecs` depends on the values of the tensors, and so `codec_for` tells only what is likely."""
        return self.needs_whole_model or any(map(shares_a_step, self.all_codecs))

    @abstractmethod
    def codecs(self, tensors: Mapping[str, NDArray[Any]], seed: int | None = 0) -> dict[str, Codec]:
        """The codec of every tensor of a message."""


@dataclass(frozen=True)
class Plan(Chooser):
    """One codec for the large tensors of a model, exceptions by rule, and one for small tensors (see `Chooser` for the arguments).

    >>> plan = Plan.of("topk(0.01) | qsgd(15) | rans", rules={"embed*": "topk(0.001)"})
    >>> str(plan.codec_for("fc.weight", (512, 512)))
    'topk(0.01) | qsgd(15) | rans'
    >>> str(plan.codec_for("fc.bias", (512,))), str(plan.codec_for("embed.weight", (9, 512)))
    ('raw', 'topk(0.001)')
    >>> str(Plan.of("fp16", rules={"dims:4 size:5000..": "topk(0.1)"}).codec_for("conv", (32, 32, 3, 3)))
    'topk(0.1)'
    >>> str(Plan.of("fp16", small=None).codec_for("fc.bias", (512,)))
    'fp16'

    With `whole_model` the large values of all tensors compete, instead of each tensor keeping its share:

    >>> import numpy as np
    >>> tensors = {"a": np.arange(2000.0).reshape(2, 1000), "b": np.ones((2, 1000))}
    >>> shared = Plan.of("topk(0.25) | fp16", whole_model=True).codecs(tensors)
    >>> {name: str(chosen) for name, chosen in shared.items()}
    {'a': 'threshold(1000.0) | fp16', 'b': 'threshold(1000.0) | fp16'}
    """

    whole_model: bool = False  # topk(ratio) keeps that share of all its tensors together: one threshold for the model
    fit: str = KEPT  # what `fp`, `mwl2` and `lloyd` fit behind a sparsifier: the values that are "kept", or "all" of the tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fit(self.fit)

    @classmethod
    def of(
        cls,
        default: CodecLike,
        rules: Rules = (),
        small: CodecLike | None = AUTO,
        small_below: int = 1024,
        flat_is_small: bool = True,
        whole_model: bool = False,
        fit: str = KEPT,
    ) -> Plan:
        """A plan from specs."""
        return cls(default, rules, small, small_below, flat_is_small, whole_model, fit)  # type: ignore[arg-type]

    @property
    def needs_whole_model(self) -> bool:
        return self.whole_model

    @property
    def looks_at_values(self) -> bool:
        return self.fit == ALL or super().looks_at_values

    def codecs(self, tensors: Mapping[str, NDArray[Any]], seed: int | None = 0) -> dict[str, Codec]:
        """The codec of every tensor of a message."""
        chosen = {name: self.codec_for(name, x.shape, dtype_name(x.dtype)) for name, x in tensors.items()}
        if self.fit == ALL:
            chosen = {name: held_codec(chosen[name], x) for name, x in tensors.items()}
        shared = with_common_thresholds(chosen, tensors) if self.whole_model else chosen
        return with_common_steps(shared, tensors)


def check_fit(of: str) -> None:
    if of not in (KEPT, ALL):
        raise SpecError(f'a fit is of the "kept" values or of "all", got {of!r}')


PlanLike = Chooser | CodecLike


def as_plan(plan: PlanLike) -> Chooser:
    """What a spec means for a model (plans and budgets pass through)."""
    return plan if isinstance(plan, Chooser) else Plan.of(plan)


def _checked_rules(rules: Any) -> tuple[tuple[str, Codec], ...]:
    """A rule that cannot be read is refused here, not at the first tensor."""
    try:
        pairs = [(rule, spec) for rule, spec in (rules.items() if isinstance(rules, Mapping) else rules)]
    except (TypeError, ValueError):
        raise SpecError('rules are a dict or pairs of a rule and a spec, e.g. {"embed*": "fp16"}') from None
    for rule, _ in pairs:
        if not isinstance(rule, str):
            raise SpecError(f"a rule is text, got {type(rule).__name__}")
        Rule.of(rule)
    return tuple((rule, _checked(spec)) for rule, spec in pairs)


def _checked(spec: object) -> Codec:
    """A codec that can code a tensor of floats."""
    if not isinstance(spec, Codec | str):
        raise SpecError(f"a codec is given as a spec or as a Codec, got {type(spec).__name__}")
    found = codec(spec)
    as_pipeline(found)
    return found
