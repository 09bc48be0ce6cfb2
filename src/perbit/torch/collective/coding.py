"""Several tensors as one frame: encoded from where they lie, added to where they belong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perbit.channels import Layout, frames
from perbit.coding.bits import Piece
from perbit.coding.codec import Pipeline
from perbit.coding.values import Echo, Known, Shape
from perbit.errors import StateMismatch
from perbit.frame.header import DIGEST_BYTES, Entry

if TYPE_CHECKING:
    from perbit.torch.vectors import Vector

_NO_DIGEST = bytes(DIGEST_BYTES)  # the ranks share no memory that a frame could be made against


@dataclass(frozen=True)
class FrameForm:
    """What is the same in every frame of the same tensors: made once, filled in at every step."""

    blueprint: frames.Blueprint

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, Shape, Pipeline]]) -> FrameForm:
        """For tensors with these names, shapes and codecs."""
        layout = Layout(tuple((name, shape) for name, shape, _ in tensors))
        entries = tuple(Entry(name, "float32", shape, codec) for name, shape, codec in tensors)
        return cls(frames.blueprint_of(layout, entries))

    def encode(
        self, parts: Sequence[Vector], keys: Sequence[int], step: int, known: Sequence[Known] | None = None
    ) -> tuple[bytes, list[Echo]]:
        """The frame of these values, and what will be decoded; `keys` feed the random choices."""
        return frames.write_parts(self.blueprint, parts, keys, step, _NO_DIGEST, known)

    def add(
        self, frame: Piece, outs: Sequence[Vector], weight: float, step: int, echoes: Sequence[Echo] | None = None
    ) -> None:
        """Add `weight` times the decoded values to the flat arrays `outs`; `echoes` if this rank made the frame."""
        self._open(frame, step).add_to(outs, weight, echoes)

    def replace(
        self,
        arrived: Sequence[Piece],
        outs: Sequence[Vector],
        weight: float,
        step: int,
        own: int,
        echoes: Sequence[Echo],
    ) -> None:
        """Make `outs` the sum of all these frames, each times `weight`: tensor by tensor, as long as each is in the cache.

        `arrived[own]` is that of this rank.
        """
        opened = [self._open(frame, step) for frame in arrived]
        for index, out in enumerate(outs):
            out.fill(0)
            for rank, frame in enumerate(opened):
                frame.add_next(frame.entries[index], out, weight, echoes[index] if rank == own else None)
        for frame in opened:
            frame.end()

    def _open(self, frame: Piece, step: int) -> frames.Opened:
        opened = frames.read(frame, self.blueprint, [entry.codec for entry in self.blueprint.entries])
        if opened.sequence != step:
            raise StateMismatch(
                f"another rank is at step {opened.sequence}, this one at {step}; resume all ranks from one checkpoint",
                *(opened.sequence, step),
            )
        return opened


def cuts(n: int, pieces: int) -> Iterator[tuple[int, int]]:
    """The half-open ranges that cut n values into almost equal pieces.

    >>> list(cuts(10, 4))
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return ((n * piece // pieces, n * (piece + 1) // pieces) for piece in range(pieces))
