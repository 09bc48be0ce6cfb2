"""Which parameters an engine hands over together, and where the piece of each of them lies that belongs to a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING

from perbit.coding.afar import works_afar
from perbit.coding.codec import Codec, Pipeline, as_pipeline
from perbit.coding.values import Echo, Shape, size
from perbit.plan.plan import Chooser, PlanLike, as_plan
from perbit.plan.whole import shares_a_step, with_common_steps
from perbit.torch.collective.coding import FrameForm, cuts
from perbit.torch.feedback import decay

if TYPE_CHECKING:
    from perbit.torch.vectors import Vector

Bounds = list[tuple[int, int]]  # for each parameter, where it begins and ends


@dataclass(frozen=True)
class CodedParameter:
    """One parameter in a bucket: its values are [start, stop) of the bucket's."""

    name: str
    shape: Shape
    codec: Pipeline
    gamma: float | None  # the decay of its error memory; None: it has none
    start: int
    stop: int

    @classmethod
    def of(cls, name: str, shape: Shape, codec: Codec, error_feedback: bool | float, start: int) -> CodedParameter:
        """A parameter whose values begin at `start`."""
        pipeline, n = as_pipeline(codec), size(shape)
        return cls(name, shape, pipeline, decay(error_feedback, pipeline, n), start, start + n)

    @property
    def n(self) -> int:
        return self.stop - self.start

    @cached_property
    def is_exact(self) -> bool:
        return self.codec.omega(self.n) == 0


@dataclass(frozen=True, eq=False)
class Bucket:
    """Parameters whose gradients come together, one after the other; pieces are cut from each of them.

    Made once and known by identity: what follows from the parameters is looked up at every step.
    """

    parameters: tuple[CodedParameter, ...]
    is_whole: bool = False  # nothing comes in other buckets: codecs that can (`rd` by bits or by error) choose for all parameters together

    @property
    def n(self) -> int:
        """How many values; of shards, those of one."""
        return self.parameters[-1].stop

    @property
    def works_afar(self) -> bool:
        """Whether values may stay where they are: some codecs gain by it, and none chooses by the values of all parameters."""
        codecs = [parameter.codec for parameter in self.parameters]
        return any(map(works_afar, codecs)) and not (self.is_whole and any(shares_a_step(c.stages[0]) for c in codecs))

    @property
    def has_memory(self) -> bool:
        return any(parameter.gamma is not None for parameter in self.parameters)

    @cache  # noqa: B019  a model has few buckets, and they last as long as the training
    def in_parameter(self, piece: int, pieces: int) -> Bounds:
        """The piece of every parameter, counted from where the parameter begins; memories are cut in the same way."""
        shapes = [piece_shape(parameter.shape, piece, pieces) for parameter in self.parameters]
        before = [sum(size(piece_shape(p.shape, i, pieces)) for i in range(piece)) for p in self.parameters]
        return [(start, start + size(shape)) for start, shape in zip(before, shapes, strict=True)]

    @cache  # noqa: B019
    def in_values(self, piece: int, pieces: int) -> Bounds:
        """The piece of every parameter among the values of the bucket."""
        bounds = self.in_parameter(piece, pieces)
        return [(p.start + lo, p.start + hi) for p, (lo, hi) in zip(self.parameters, bounds, strict=True)]

    def memory_size(self, parameter: CodedParameter, pieces: int) -> int:
        return parameter.n

    def shapes(self, piece: int, pieces: int) -> list[Shape]:
        return [piece_shape(parameter.shape, piece, pieces) for parameter in self.parameters]

    @cache  # noqa: B019
    def form(self, piece: int, pieces: int) -> FrameForm:
        """For the frames of a piece."""
        shapes = self.shapes(piece, pieces)
        return FrameForm.of([(p.name, shape, p.codec) for p, shape in zip(self.parameters, shapes, strict=True)])

    def form_for(self, parts: Sequence[Vector], piece: int, pieces: int) -> FrameForm:
        """For a frame of these values."""
        codecs = {p.name: p.codec.stages[0] if len(p.codec.stages) == 1 else p.codec for p in self.parameters}
        if not self.is_whole or not any(map(shares_a_step, codecs.values())):
            return self.form(piece, pieces)
        shapes = dict(zip(codecs, self.shapes(piece, pieces), strict=True))
        tensors = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        chosen = with_common_steps(codecs, tensors)  # type: ignore[arg-type]
        return FrameForm.of([(name, shape, as_pipeline(chosen[name])) for name, shape in shapes.items()])


@dataclass(frozen=True, eq=False)
class ShardBucket(Bucket):
    """Parameters that are sharded already: the values come shard by shard, one for each rank, and every shard is a piece.

    `shape`, `start` and `stop` of a parameter are those of its part of one shard.
    """

    @cache  # noqa: B019
    def in_parameter(self, piece: int, pieces: int) -> Bounds:
        return [(piece * parameter.n, (piece + 1) * parameter.n) for parameter in self.parameters]

    @cache  # noqa: B019
    def in_values(self, piece: int, pieces: int) -> Bounds:
        return [(piece * self.n + parameter.start, piece * self.n + parameter.stop) for parameter in self.parameters]

    def memory_size(self, parameter: CodedParameter, pieces: int) -> int:
        return pieces * parameter.n

    def shapes(self, piece: int, pieces: int) -> list[Shape]:
        return [parameter.shape for parameter in self.parameters]


@dataclass(eq=False)
class BucketGradients:
    """The gradients of a bucket in one step; a reduction replaces them by their mean."""

    bucket: Bucket
    values: Vector
    step: int
    index: int  # of the bucket in the step
    sending: list[list[Vector]] = field(default_factory=list)  # what is encoded for each piece
    echoes: dict[int, list[Echo]] = field(default_factory=dict)  # of the last frame that this rank made for a piece


def piece_shape(shape: Shape, piece: int, pieces: int) -> Shape:
    """Of the pieces that a parameter is cut into: some of its rows, if there are enough of them, so that codecs for matrices still see some."""
    if pieces == 1:
        return shape
    by_rows = len(shape) > 1 and shape[0] >= pieces
    lo, hi = list(cuts(shape[0] if by_rows else size(shape), pieces))[piece]
    return (hi - lo, *shape[1:]) if by_rows else (hi - lo,)


def ring_bytes(n: int, world: int) -> int:
    """What a float32 ring all-reduce of n values sends from each rank."""
    return 2 * (world - 1) * n * 4 // world


def plan_by_parameter(plan: PlanLike) -> Chooser:
    """A spec or a plan, for engines that give the gradients of a model in parts."""
    chooser = as_plan(plan)
    if chooser.needs_whole_model:
        raise ValueError(
            "a Budget or a plan with whole_model=True chooses codecs by the values of the whole model, but gradients come in parts here; "
            "use a spec, or a Plan without whole_model"
        )
    return chooser
