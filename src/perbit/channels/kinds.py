"""The channels: nothing remembered, error feedback, shifts, running sums, momentum, warm-up. Each body is its equation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Literal

import numpy as np

from perbit import theory
from perbit.channels.base import Channel, Code, State
from perbit.channels.layout import Layout
from perbit.channels.tree import Memory
from perbit.coding.spec import codec
from perbit.errors import SpecError
from perbit.kernels.api import F32
from perbit.plan.plan import PlanLike, as_plan

_FLOAT32_MAX = float(np.finfo(np.float32).max)

Alpha = (
    float | Literal["tensor"] | None
)  # the rate of a memory: a number, from each tensor's own ω, or from the largest
Beginning = Literal["zero", "first"]  # where a memory starts: at zero, or at the first vector


def _plan(plan: PlanLike) -> PlanLike:
    found = codec(plan) if isinstance(plan, str) else plan
    as_plan(found)  # what cannot code a model is refused here, not at the first frame
    return found


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _wrong(channel: Channel, parameter: str, expected: str) -> SpecError:
    return SpecError(f"{type(channel).__name__}: {parameter} must be {expected}, got {getattr(channel, parameter)!r}")


class _Memoryless(Channel):
    """A channel that carries each vector as it comes: codecs only."""

    def memories(self, n: int) -> tuple[Memory, Memory]:
        return (), ()

    def push(self, x: F32, memory: Memory, layout: Layout, code: Code) -> tuple[F32, Memory]:
        return code(x), ()

    def pull(self, decoded: F32, memory: Memory, layout: Layout) -> tuple[F32, Memory]:
        return decoded, ()


@dataclass(frozen=True)
class Direct(_Memoryless):
    """value = C(x). Nothing is remembered; frames are still numbered so that a lost or repeated one is noticed.

    >>> import numpy as np
    >>> channel = Direct("topk(k=1)")
    >>> sender, receiver = channel.init(3)
    >>> sent = channel.send(np.array([1, -5, 2], np.float32), sender, seed=0)
    >>> channel.receive(sent.frame, receiver)[0].tolist()
    [0.0, -5.0, 0.0]
    """

    plan: PlanLike
    numbered: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", _plan(self.plan))

    def plan_at(self, sequence: int) -> PlanLike:
        return self.plan


@dataclass(frozen=True)
class Warmup(_Memoryless):
    """Like Direct, but the first frames have other codecs: `stages` are (frames, plan) pairs, then comes `plan`.

    Deep gradient compression ramps the sparsity 75 %, 93.75 %, 98.44 %, 99.6 %, 99.9 % (Lin et al., 2018, section 3.3).
    """

    stages: tuple[tuple[int, PlanLike], ...]
    plan: PlanLike
    numbered = True

    def __post_init__(self) -> None:
        if not all(map(_is_stage, self.stages)):
            raise _wrong(self, "stages", "pairs of a number of frames, at least 0, and a plan")
        object.__setattr__(self, "stages", tuple((count, _plan(plan)) for count, plan in self.stages))
        object.__setattr__(self, "plan", _plan(self.plan))

    def plan_at(self, sequence: int) -> PlanLike:
        for count, plan in self.stages:
            if sequence < count:
                return plan
            sequence -= count
        return self.plan


def _is_stage(stage: object) -> bool:
    if not isinstance(stage, tuple | list) or len(stage) != 2:
        return False
    count = stage[0]
    return isinstance(count, int) and not isinstance(count, bool) and count >= 0


@dataclass(frozen=True)
class _Wrapper(Channel):
    """A channel around another: the codecs are the inner one's, the shared memory too unless it adds its own."""

    inner: Channel
    numbered = True

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Channel):
            raise _wrong(self, "inner", 'a channel such as Direct("topk(0.01)")')

    @cached_property
    def _chosen(self) -> dict[Layout, float]:
        """The parameters worked out so far. Each channel has its own, since equal channels may be written differently."""
        return {}

    def plan_at(self, sequence: int) -> PlanLike:
        return self.inner.plan_at(sequence)

    def shared(self, memory: Memory) -> tuple[F32, ...]:
        return self.inner.shared(memory[-1])

    def with_shared(self, memory: Memory, arrays: tuple[F32, ...]) -> Memory:
        return (*memory[:-1], self.inner.with_shared(memory[-1], arrays))


@dataclass(frozen=True)
class ErrorFeedback(_Wrapper):
    """v = x + γ·m; value = C(v); m ← v - value. The memory m is the sender's alone; decay γ = 1 is the classical form.

    Seide et al. (2014), Stich et al. (2018); γ < 1 is the memory decay of CO₃. With γ = 1 the memory stays bounded only if
    the codec loses less than it is given (ω < 1); decay=None takes 1 there, and 1/(ω + 1) for noisier codecs.

    A sender that works on a shared point w and sends how far it got (local training) starts at w - apart·γ·m. With 1 that is where it
    would be had everything been sent: nothing that waits is found and sent a second time, and the senders' mean moves as without compression.
    """

    decay: float | None = 1.0
    apart: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay is not None and not (_is_number(self.decay) and 0 <= self.decay <= 1):
            raise _wrong(self, "decay", "none or a number from 0 to 1")
        if not (_is_number(self.apart) and 0 <= self.apart <= 1):
            raise _wrong(self, "apart", "a number from 0 to 1")

    def gamma(self, layout: Layout) -> float:
        """The γ in use for this model."""
        if self.decay is not None:
            return self.decay
        if layout not in self._chosen:
            omega = self.inner.omega(layout)
            self._chosen[layout] = 1.0 if omega < 1 else 1 / (omega + 1)
        return self._chosen[layout]

    def memories(self, n: int) -> tuple[Memory, Memory]:
        sender, receiver = self.inner.memories(n)
        return (np.zeros(n, np.float32), sender), (receiver,)

    def push(self, x: F32, memory: Memory, layout: Layout, code: Code) -> tuple[F32, Memory]:
        m, inner = memory
        v = x + np.float32(self.gamma(layout)) * m
        value, inner = self.inner.push(v, inner, layout, code)
        return value, (v - value, inner)

    def pull(self, decoded: F32, memory: Memory, layout: Layout) -> tuple[F32, Memory]:
        value, inner = self.inner.pull(decoded, memory[-1], layout)
        return value, (inner,)

    def owed(self, state: State) -> F32 | None:
        if not self.apart:
            return None
        m: F32 = state.memory[0]
        return np.float32(self.apart * self.gamma(state.layout)) * m


@dataclass(frozen=True)
class Shifted(_Wrapper):
    """d = C(x - h); value = h + d; h ← h + α·d, at both ends.

    The memory of DIANA (Mishchenko et al., 2019) on the way up and of MCM on the way down; α = 1 is EF21 (Richtárik et
    al., 2021). Without `alpha` it is 1/(2(ω + 1)) for the largest ω that the codecs declare, and 1 for biased codecs, which need EF21.
    `alpha="tensor"` takes the ω of each tensor, as the code of MCM's authors does: a small bias then follows at once, where one rate for
    the whole model would hold it to the pace of the largest tensor. `start="first"`, theirs too: the first frame carries x raw, and h is x.
    """

    alpha: Alpha = None
    start: Beginning = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha not in (None, "tensor") and not (_is_number(self.alpha) and 0 < float(self.alpha) <= 1):
            raise _wrong(self, "alpha", 'none, "tensor" or a number above 0 and at most 1')
        if self.start not in ("zero", "first"):
            raise _wrong(self, "start", '"zero" or "first"')

    def rate(self, layout: Layout) -> float:
        """The α in use for this model; the least of them if every tensor has its own."""
        if isinstance(self.alpha, float | int):
            return self.alpha
        if layout not in self._chosen:
            is_unbiased = self.inner.unbiased(layout)
            self._chosen[layout] = theory.memory_rate(self.inner.omega(layout)) if is_unbiased else 1.0
        return self._chosen[layout]

    @cached_property
    def _by_value(self) -> dict[Layout, F32]:
        """The α of every value, worked out so far."""
        return {}

    def _rates(self, layout: Layout) -> F32 | np.float32:
        if self.alpha != "tensor":
            return np.float32(self.rate(layout))
        if layout not in self._by_value:
            self._by_value[layout] = rates_by_value(self.inner, layout)
        return self._by_value[layout]

    def plan_at(self, sequence: int) -> PlanLike:
        return "raw" if self.start == "first" and sequence == 0 else self.inner.plan_at(sequence)

    def memories(self, n: int) -> tuple[Memory, Memory]:
        sender, receiver = self.inner.memories(n)
        h = np.zeros(n, np.float32)
        mark = (np.zeros(1, np.float32),) if self.start == "first" else ()  # becomes 1 with the first frame
        return (h, *mark, sender), (h, *mark, receiver)

    def push(self, x: F32, memory: Memory, layout: Layout, code: Code) -> tuple[F32, Memory]:
        h, *mark, inner = memory
        if mark and not mark[0][0]:
            return self._started(code(x), inner)
        d, inner = self.inner.push(x - h, inner, layout, code)
        return self._moved(h, d, (*mark, inner), layout)

    def pull(self, decoded: F32, memory: Memory, layout: Layout) -> tuple[F32, Memory]:
        h, *mark, inner = memory
        if mark and not mark[0][0]:
            return self._started(decoded, inner)
        d, inner = self.inner.pull(decoded, inner, layout)
        return self._moved(h, d, (*mark, inner), layout)

    def _started(self, x: F32, inner: Memory) -> tuple[F32, Memory]:
        return x, (x, np.ones(1, np.float32), inner)

    def _moved(self, h: F32, d: F32, rest: Memory, layout: Layout) -> tuple[F32, Memory]:
        """The value and the new memory: one array for both where the memory moves by all of d."""
        value, rate = h + d, self._rates(layout)
        if self.alpha != "tensor" and rate == 1:
            return value, (value, *rest)
        is_ours = not rest[-1] and d.flags.writeable  # what was just decoded, and the inner channel remembers nothing
        moved = np.multiply(d, rate, out=d if is_ours else None)
        moved += h
        return value, (moved, *rest)

    def shared(self, memory: Memory) -> tuple[F32, ...]:
        return (*memory[:-1], *self.inner.shared(memory[-1]))

    def with_shared(self, memory: Memory, arrays: tuple[F32, ...]) -> Memory:
        own = len(memory) - 1
        return (*arrays[:own], self.inner.with_shared(memory[-1], arrays[own:]))

    def expectation(self, state: State) -> F32 | None:
        h: F32 = state.memory[0]
        return h


def rates_by_value(channel: Channel, layout: Layout) -> F32:
    """α of every value by the ω of its tensor: 1/(2(ω + 1)), or 1 for all if a codec is biased."""
    is_unbiased = channel.unbiased(layout)
    rates = [theory.memory_rate(omega) if is_unbiased else 1.0 for omega in channel.omegas(layout)]
    return np.repeat(np.array(rates, np.float32), [hi - lo for lo, hi in layout.bounds])


@dataclass(frozen=True)
class Summed(_Wrapper):
    """w ← w + β·C(x); value = w, at both ends: the sender gives a step, the receiver has the point it leads to."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (_is_number(self.scale) and 0 < self.scale <= _FLOAT32_MAX):
            raise _wrong(self, "scale", "a number above 0 that float32 can hold")

    def memories(self, n: int) -> tuple[Memory, Memory]:
        sender, receiver = self.inner.memories(n)
        w = np.zeros(n, np.float32)
        return (w, sender), (w, receiver)

    def push(self, x: F32, memory: Memory, layout: Layout, code: Code) -> tuple[F32, Memory]:
        w, inner = memory
        d, inner = self.inner.push(x, inner, layout, code)
        w = w + np.float32(self.scale) * d
        return w, (w, inner)

    def pull(self, decoded: F32, memory: Memory, layout: Layout) -> tuple[F32, Memory]:
        w, inner = memory
        d, inner = self.inner.pull(decoded, inner, layout)
        w = w + np.float32(self.scale) * d
        return w, (w, inner)

    def shared(self, memory: Memory) -> tuple[F32, ...]:
        return (memory[0], *self.inner.shared(memory[-1]))

    def with_shared(self, memory: Memory, arrays: tuple[F32, ...]) -> Memory:
        return arrays[0], self.inner.with_shared(memory[-1], arrays[1:])


@dataclass(frozen=True)
class Momentum(_Wrapper):
    """u ← μ·u + x; value = inner(u); with `masked`, u is cleared where something was sent.

    Momentum correction and factor masking of deep gradient compression (Lin et al., 2018, sections 3.1 and 3.2), around
    error feedback: Momentum(ErrorFeedback(Direct("topk(0.001)"))).
    """

    factor: float = 0.9
    masked: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (_is_number(self.factor) and 0 <= self.factor < 1):
            raise _wrong(self, "factor", "a number of at least 0 and below 1")

    def memories(self, n: int) -> tuple[Memory, Memory]:
        sender, receiver = self.inner.memories(n)
        return (np.zeros(n, np.float32), sender), (receiver,)

    def push(self, x: F32, memory: Memory, layout: Layout, code: Code) -> tuple[F32, Memory]:
        u, inner = memory
        u = np.float32(self.factor) * u + x
        value, inner = self.inner.push(u, inner, layout, code)
        return value, (np.where(value != 0, np.float32(0), u) if self.masked else u, inner)

    def pull(self, decoded: F32, memory: Memory, layout: Layout) -> tuple[F32, Memory]:
        value, inner = self.inner.pull(decoded, memory[-1], layout)
        return value, (inner,)
