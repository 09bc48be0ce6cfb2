"""The codec `rd`: its knobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import FloatCodec, Rest
from perbit.coding.cost import Cost
from perbit.coding.families.rd import factors, search, tensor
from perbit.coding.families.rd.search import STEPS
from perbit.coding.families.rd.tensor import Tensor
from perbit.coding.registry import register
from perbit.coding.values import Floats, Shape, size
from perbit.errors import DecodeError
from perbit.kernels.api import F32

_STEP_AND_SEAL = 8
_LEAST = 64.0  # bytes that values get, whatever their heads take


def _address(array: F32) -> int:
    """Which memory it is: no two arrays that are alive share it, but for empty ones, of which all are alike."""
    address: int = array.__array_interface__["data"][0]
    return address if array.size else 0


@register
@dataclass(frozen=True)
class RateDistortion(FloatCodec):
    """The fewest bytes for an error: low rank where it pays, a trellis quantizer for the rest, all at one exchange rate of error against bits.

    Exactly one knob is set. In a message all tensors with this codec share the step, so bytes go where they save most error.

    Args:
        step: how fine the quantizer is, in the unit of the values.
        bits: bits a value, at most, heads counted; of a message, over all its tensors with this codec. Where heads leave less than 64 bytes,
            these are used all the same: a model of a few values would never move.
        db: squared error in decibels relative to sending nothing, at most.
        random: random rounding, so that the mean of many decoded frames is the input.
        rank: components at most; 0 switches the low-rank part off.
    """

    step: float | None = None
    bits: float | None = None
    db: float | None = None
    random: bool = False
    rank: int = factors.MOST

    name = "rd"
    wire_id = 57
    examples = ("rd(0.5)", "rd(bits=1)", "rd(db=-10)", "rd(0.2, random=true)", "rd(0.05, rank=0)")
    gives = "coded"
    codes_small = True
    _prepared: ClassVar[
        dict[int, Tensor]
    ] = {}  # what the search for a step found out, as long as the arrays stay as they were

    def __post_init__(self) -> None:
        knobs = [name for name in ("step", "bits", "db") if getattr(self, name) is not None]
        if len(knobs) != 1:
            raise ValueError(f"set one of step, bits and db, e.g. rd(bits=0.1); got {' and '.join(knobs) or 'none'}")
        knob = knobs[0]
        value = getattr(self, knob)
        low, high = {"step": STEPS, "bits": (1e-4, 32.0), "db": (-120.0, 60.0)}[knob]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"{knob} must be a number from {low:g} to {high:g}, got {value!r}")
        object.__setattr__(self, knob, float(value))
        if not isinstance(self.random, bool):
            raise ValueError(f"random must be true or false, got {self.random!r}")
        if type(self.rank) is not int or not 0 <= self.rank <= factors.MOST:
            raise ValueError(f"rank must be 0 to {factors.MOST}, got {self.rank!r}")

    @property
    def unbiased(self) -> bool:
        return self.random

    def omega(self, n: int) -> float:
        """What `db` promises; the other knobs promise no error."""
        return math.inf if self.db is None else 10 ** (self.db / 10)

    def shared_by(self, tensors: Sequence[F32], other_bytes: int = 0) -> RateDistortion:
        """This codec with the one step at which all these tensors together, and bytes sent beside them, meet the knob."""
        return self._found(tensors, lambda prepared: self._step(prepared, other_bytes))

    def within(self, tensors: Sequence[F32], n_bytes: float) -> RateDistortion:
        """This codec with the step at which these tensors have at most so many bytes, nearly."""
        return self._found(tensors, lambda prepared: search.step_for_bytes(prepared, n_bytes, random=self.random))

    def _found(self, tensors: Sequence[F32], look: Callable[[list[Tensor]], float]) -> RateDistortion:
        prepared = {_address(x): Tensor(x, self.rank) for x in tensors}
        for each in prepared.values():
            each.checksum  # noqa: B018  of what was looked at
        found = replace(self, step=look(list(prepared.values())), bits=None, db=None)
        object.__setattr__(found, "_prepared", prepared)
        return found

    def _known(self, array: F32) -> Tensor:
        """What the search found out about this very array; nothing if it has changed since."""
        new, known = Tensor(array, self.rank), self._prepared.get(_address(array))
        same = known is not None and known.shape == new.shape and known.checksum == new.checksum
        return known if known is not None and same else new

    def _step(self, tensors: Sequence[Tensor], other_bytes: int) -> float:
        if self.bits is not None:
            goal = max(self.bits * sum(each.flat.size for each in tensors) / 8 - other_bytes, _LEAST)
            return search.step_for_bytes(tensors, goal, random=self.random)
        if self.db is not None:
            return search.step_for_error(tensors, self.db, random=self.random)
        assert self.step is not None
        return self.step

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        prepared = self._known(values.array)
        # Of a lone array the head is there already; the step itself and the seal follow.
        step = np.float32(self._step([prepared], sum(map(len, out.pieces)) + _STEP_AND_SEAL))
        if self.step is None:
            out.raw(step.tobytes())
        prepared.write(float(step), out, key if self.random else None)

    def cost(self, shape: Shape) -> Cost:
        """Of the values; taps, components and streams are paid for when they are met."""
        return Cost(4 * size(shape) + (1 << 20), 6 * size(shape) + 40_000)

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        step = np.float32(self.step) if self.step is not None else np.frombuffer(src.take(4, "step"), "<f4")[0]
        if not STEPS[0] / 2 <= step <= STEPS[1] * 2:
            raise DecodeError(f"rd: {step} is no step")
        return tensor.read(src, shape, float(step)).reshape(shape)
