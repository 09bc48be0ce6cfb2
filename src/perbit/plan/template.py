"""Specs with one open parameter, `topk(?) | qsgd(15) | rans`, and the values that may take its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from perbit.coding import registry
from perbit.coding.codec import Codec, parameters
from perbit.coding.spec import HOLE, Call, assemble, build, parse_calls
from perbit.errors import SpecError

_STEP = 1.0005  # neighbouring real numbers differ by this factor: sizes by less than a thousandth
_DIGITS = 4  # significant digits of a real number: short to read, and short in the frame
_MANY = 4096  # whole numbers in a range that are still tried one by one
_WHOLE_DIGITS = 17
_LATEST_START = 17  # a whole number starts below: patterns of 256 values need 9 bits


@dataclass(frozen=True)
class Axis:
    """The values of an open parameter in ascending order, without listing them."""

    name: str
    count: int
    value: Callable[[int], int | float]


def whole_numbers(name: str, low: int, high: int) -> Axis:
    """low, low + 1, … high; of many numbers, those that differ by at least a small factor.

    >>> axis = whole_numbers("bits", 1, 12)
    >>> axis.count, axis.value(0), axis.value(11)
    (12, 1, 12)
    """
    if high - low < _MANY:
        return Axis(name, high - low + 1, lambda index: low + index)
    factors = real_numbers(name, max(low, 1), high, digits=_WHOLE_DIGITS)
    return Axis(name, factors.count, lambda index: round(factors.value(index)))


def real_numbers(name: str, low: float, high: float, digits: int = _DIGITS) -> Axis:
    """From low to high by equal factors, each a decimal of few digits.

    >>> axis = real_numbers("ratio", 1e-4, 1.0)
    >>> axis.value(axis.count // 2), axis.value(axis.count - 1)
    (0.01, 1.0)
    """
    count = 2 + math.ceil(math.log(high / low) / math.log(_STEP))

    def value(index: int) -> float:
        exact = low * math.exp(math.log(high / low) * index / (count - 1))
        return min(high, max(low, float(f"{exact:.{digits}g}")))

    return Axis(name, count, value)


@dataclass(frozen=True)
class Template:
    """A spec with exactly one `?`.

    >>> template = Template("topk(?, positions=bitmap) | fp16")
    >>> str(template.fill(0.01)), str(template.fill(100))
    ('topk(0.01, positions=bitmap) | fp16', 'topk(k=100, positions=bitmap) | fp16')
    """

    text: str

    def __post_init__(self) -> None:
        if (found := len(list(self._open()))) != 1:
            raise SpecError(
                f"mark the one free parameter by a single '?', e.g. topk(?) | fp16; {self.text!r} has {found}"
            )

    @property
    def parameter(self) -> str:
        """The name of the open parameter."""
        return next(self._open())[0]

    def fill(self, value: int | float) -> Codec:
        """The codec with this value in the place of `?`."""
        return assemble([build(_filled(call, value)) for call in parse_calls(self.text)])

    def axis(self, n: int, magnitudes: tuple[float, float] = (1e-6, 1e3)) -> Axis:
        """The values the codec accepts for tensors of at most n values with magnitudes in this range."""
        name, is_whole = next(self._open())
        if is_whole:
            low = next((value for value in range(_LATEST_START) if self._accepts(value)), None)
            if low is not None and not self._accepts(low + 1):
                low = None  # single numbers, such as powers of two, not a range
            if low is None:
                self.fill(1)  # raises the codec's own explanation
                raise SpecError(f"no whole number fits {name} in {self.text!r}")
            return whole_numbers(name, low, self._largest(low, max(low, n)))
        if not self._accepts(0.5):
            self.fill(0.5)
        if not self._accepts(2.0):  # a share
            return real_numbers(name, 1 / max(n, 1), 1.0)
        axis = real_numbers(name, min(1e-6, magnitudes[0]), max(1e3, magnitudes[1]))
        if not (self._accepts(axis.value(0)) and self._accepts(axis.value(axis.count - 1))):
            raise SpecError(
                f"a budget cannot search {name} in {self.text!r}; leave another parameter open, as in rd(?)"
            )
        return axis

    def _accepts(self, value: int | float) -> bool:
        try:
            self.fill(value)
        except SpecError:
            return False
        return True

    def _largest(self, accepted: int, limit: int) -> int:
        """The largest whole number up to limit that the codec's own checks let pass."""
        refused = limit + 1
        while refused - accepted > 1:
            middle = min((accepted + refused) // 2, max(4 * accepted, 4))
            accepted, refused = (middle, refused) if self._accepts(middle) else (accepted, middle)
        return accepted

    def _open(self) -> Iterator[tuple[str, bool]]:
        """Name of each open parameter, and whether it is a whole number."""
        for call in parse_calls(self.text):
            yield from _open_in(call)


def _open_in(call: Call) -> Iterator[tuple[str, bool]]:
    cls = registry.by_name(call.name)
    if cls is None:
        build(call)  # raises the error that names the closest codec
        return
    fields = {field.name: str(field.type) for field in parameters(cls)}
    given = [*zip(fields, call.positional, strict=False), *call.named]
    for name, value in given:
        if value is HOLE:
            kinds = fields.get(name, "")
            yield name, "int" in kinds and "float" not in kinds
        elif isinstance(value, Call) and not value.bare:  # a bare name has no arguments, and may be a mere word
            yield from _open_in(value)


def _filled(part: Any, value: int | float) -> Any:
    if part is HOLE:
        return value
    if not isinstance(part, Call):
        return part
    positional = tuple(_filled(each, value) for each in part.positional)
    return Call(part.name, positional, tuple((name, _filled(each, value)) for name, each in part.named), part.bare)
