"""What a receiver takes: float32 by the codecs that both ends agreed on, and nothing that a sender prefers instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perbit.coding.bits import Piece
from perbit.coding.codec import as_pipeline
from perbit.coding.families.formats import Raw
from perbit.coding.values import Shape, size
from perbit.errors import DecodeError
from perbit.frame import wire
from perbit.frame.header import Entry
from perbit.kernels.api import F32
from perbit.plan.plan import PlanLike, as_plan


def check_agreed(found: Sequence[Entry], expected: Sequence[Entry], agreed: PlanLike) -> None:
    """Refuse tensors that are no float32, and codecs that are not the expected ones: a sender who could choose them would choose what
    the receiver has to spend.

    A plan that looks at values fits a parameter (a step, a threshold) to each message; there only the form of the codecs must be the same.
    """
    if found is expected:
        return
    plan = as_plan(agreed)
    for entry, own in zip(found, expected, strict=True):
        if entry.dtype != "float32":
            raise DecodeError(f"{entry.name!r} comes as {entry.dtype}, but float32 was agreed")
        if entry.codec != own.codec and not plan.looks_at_values:
            raise DecodeError(f"{entry.name!r} comes by {str(entry.codec)[:200]!r}, but {str(own.codec)!r} was agreed")
        plan.agreed.check(entry.codec, f"tensor {entry.name!r}")


def read_raw(frame: Piece, shapes: Mapping[str, Shape]) -> dict[str, F32]:
    """Exactly these tensors, as they are: what stands for a memory, or for a whole model that goes raw."""
    return read_planned(frame, shapes, Raw())


def read_planned(frame: Piece, shapes: Mapping[str, Shape], plan: PlanLike) -> dict[str, F32]:
    """Exactly these tensors, in float32 by the codecs of a plan."""
    header = wire.read_header(frame, sum(map(size, shapes.values())))
    wire.check_message(header)
    wire.check_expected(header, dict(shapes))
    chooser = as_plan(plan)
    own = [replace(e, dtype="float32", codec=as_pipeline(chooser.codec_for(e.name, e.shape))) for e in header.entries]
    check_agreed(header.entries, own, chooser)
    return wire.loads(frame, expect=shapes)
