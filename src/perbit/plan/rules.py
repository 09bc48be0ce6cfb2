"""Rules of a plan as text: a name pattern, and how many dimensions or values a tensor must have.

    conv*                    names that match
    conv* dims:4             … of four-dimensional tensors
    size:..4095              tensors of any name with at most 4095 values
    *.weight size:1e6..      large weights
    "my tensor"              the one tensor of this name, whatever characters it has

>>> rule = Rule.of("conv* dims:2..4 size:1000..")
>>> rule.matches("conv1.weight", (16, 3, 3, 3)), rule.matches("conv2.weight", (32, 16, 3, 3)), rule.matches("fc", (64, 64))
(False, True, False)
"""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from perbit.coding.values import Shape, size
from perbit.errors import SpecError

Range = tuple[float, float]
_ANY: Range = (0, math.inf)


@dataclass(frozen=True)
class Rule:
    """Which tensors a rule speaks of."""

    pattern: str = "*"
    dims: Range = _ANY
    size: Range = _ANY

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, text: str) -> Rule:
        """A rule from its text."""
        if text.startswith('"'):
            return cls(glob.escape(_quoted(text)))
        names: list[str] = []
        conditions: dict[str, Range] = {}
        for word in text.split():
            key, colon, value = word.partition(":")
            if colon and key in ("dims", "size"):
                conditions[key] = _range(value, text)
            else:
                names.append(word)
        if len(names) > 1:
            raise SpecError(f"rule {text!r} has {len(names)} name patterns; write a rule for each, or ? for a space")
        any_name = "*" if conditions else ""  # an empty rule speaks of the tensor without a name
        return cls(names[0] if names else any_name, **conditions)

    def matches(self, name: str, shape: Shape) -> bool:
        """Whether a tensor of this name and shape is meant."""
        return (
            fnmatchcase(name, self.pattern)
            and self.dims[0] <= len(shape) <= self.dims[1]
            and self.size[0] <= size(shape) <= self.size[1]
        )


def idle_rules(rules: Iterable[str], shapes: Mapping[str, Shape]) -> list[str]:
    """The rules that speak of no tensor.

    >>> idle_rules(["conv*", "dims:1"], {"fc.weight": (3, 4), "fc.bias": (3,)})
    ['conv*']
    """
    return [text for text in rules if not any(Rule.of(text).matches(name, shape) for name, shape in shapes.items())]


def rule_for(name: str) -> str:
    """The rule that speaks of the tensor with this name alone.

    >>> Rule.of(rule_for("block 1 [a]")).matches("block 1 [a]", (3,)), Rule.of(rule_for("b*")).matches("bias", (3,))
    (True, False)
    """
    return json.dumps(name, ensure_ascii=False)


def _quoted(text: str) -> str:
    try:
        name = json.loads(text)
    except ValueError:
        raise SpecError(f"rule {text!r} begins like a name in quotes, but cannot be read as one") from None
    return str(name)


def _range(text: str, rule: str) -> Range:
    """`4`, `2..4`, `2..` or `..4`."""
    low, dots, high = text.partition("..")
    try:
        first = float(low) if low else 0.0
        last = float(high) if high else (math.inf if dots else first)
    except ValueError:
        first, last = math.nan, math.nan
    if not (text and first <= last):
        raise SpecError(f"rule {rule!r}: {text!r} is no range; write 4, 2..4, 2.. or ..4")
    return first, last
