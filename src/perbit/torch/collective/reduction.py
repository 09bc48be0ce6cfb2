"""The mean of a bucket over all ranks, by coded bytes. Every rank adds the same decoded frames in the same order: all get the same bits.

Up to a few ranks, everybody sends its frame to everybody. Beyond, that traffic would grow with the number of ranks, so each rank owns a
piece of every parameter: it gets that piece from all others, averages, and sends the average to everybody, coded once more.

A gradient with NaN or infinity cannot be coded. Its rank sends an empty message instead, and the mean is NaN on every rank, as it would be
without compression; what the other ranks had to send stays in their memories.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perbit.coding.bits import Piece
from perbit.coding.values import Known, Range
from perbit.kernels import K
from perbit.randomness import fold, key_from_seed
from perbit.torch import vectors
from perbit.torch.collective.buckets import Bucket, BucketGradients, CodedParameter
from perbit.torch.collective.bytegroup import ByteGroup
from perbit.torch.feedback import Memories, fed

if TYPE_CHECKING:
    from perbit.torch.vectors import Vector


class Reduction(ABC):
    """`encode` runs as soon as a bucket is ready; `finish` on another thread, which alone talks to the other ranks."""

    pieces: int

    def __init__(self, group: ByteGroup, memories: Memories, seed: int) -> None:
        self.group, self.memories = group, memories
        self.key = fold(key_from_seed(seed), group.rank)

    def encode(self, gradients: BucketGradients) -> list[bytes]:
        """A frame for each piece; all empty if the gradients hold NaN or infinity."""
        ranges = [[vectors.scan(part) for part in self._parts(gradients, piece)] for piece in range(self.pieces)]
        if any(n_nonfinite for of_piece in ranges for _, _, n_nonfinite in of_piece):
            return [b""] * self.pieces
        is_zero = [all(map(_is_of_zeros, of_one)) for of_one in zip(*ranges, strict=True)]
        gradients.sending = [
            [] if self.keeps(piece) else self._fed(gradients, self._parts(gradients, piece), piece, is_zero)
            for piece in range(self.pieces)
        ]
        return [
            b""
            if self.keeps(piece)
            else self._encoded(gradients, gradients.sending[piece], ranges[piece], piece, piece)
            for piece in range(self.pieces)
        ]

    @abstractmethod
    def finish(self, gradients: BucketGradients, frames: list[bytes]) -> None:
        """Replace the gradients by their mean over all ranks."""

    def keeps(self, piece: int) -> bool:
        """Whether this rank averages the piece itself, and so need not encode it for anybody."""
        return False

    def _parts(self, gradients: BucketGradients, piece: int) -> list[Vector]:
        """The piece of every parameter, as views of the gradients."""
        return [gradients.values[lo:hi] for lo, hi in gradients.bucket.in_values(piece, self.pieces)]

    def _fed(self, gradients: BucketGradients, parts: list[Vector], piece: int, is_zero: list[bool]) -> list[Vector]:
        """The parts with what was kept back before."""
        bucket = gradients.bucket
        bounds = bucket.in_parameter(piece, self.pieces)
        return [
            part
            if parameter.gamma is None
            else fed(part, self._memory(bucket, parameter, part)[lo:hi], parameter.gamma, zero)
            for parameter, part, (lo, hi), zero in zip(bucket.parameters, parts, bounds, is_zero, strict=True)
        ]

    def _memory(self, bucket: Bucket, parameter: CodedParameter, like: Vector) -> Vector:
        return self.memories.of(parameter.name, bucket.memory_size(parameter, self.pieces), like)

    def _known(self, parameter: CodedParameter, found: Range, piece: int) -> Known:
        """Without a memory, the range of what is sent; with one, what the encoder recalls: error feedback brings back what was not sent."""
        if parameter.gamma is None:
            return Known(found)
        return Known(recall=self.memories.recall(f"{parameter.name}/{piece}"))

    def _encoded(
        self, gradients: BucketGradients, parts: Sequence[Vector], ranges: Sequence[Range], piece: int, purpose: int
    ) -> bytes:
        """The frame of a piece; `ranges` are without what memories add. Keys go by parameter and step, so that how parameters fall into
        buckets changes nothing."""
        key = fold(fold(self.key, gradients.step), purpose)
        keys = [fold(key, K.crc32c(parameter.name.encode())) for parameter in gradients.bucket.parameters]
        known = [self._known(*each, piece) for each in zip(gradients.bucket.parameters, ranges, strict=True)]
        frame, gradients.echoes[piece] = gradients.bucket.form_for(parts, piece, self.pieces).encode(
            parts, keys, gradients.step, known
        )
        return frame

    def _add(
        self,
        gradients: BucketGradients,
        frame: Piece,
        outs: Sequence[Vector],
        piece: int,
        weight: float,
        *,
        own: bool = False,
    ) -> None:
        """Add a decoded frame; what is known of the last `own` frame for this piece is not decoded."""
        echoes = gradients.echoes[piece] if own else None
        gradients.bucket.form(piece, self.pieces).add(frame, outs, weight, gradients.step, echoes)

    def _commit(self, gradients: BucketGradients, frame: Piece, sent: list[Vector], piece: int) -> None:
        """A frame was delivered: take its values off the memories. (Where there is no memory, off gradients about to be replaced.)"""
        if gradients.bucket.has_memory:
            self._add(gradients, frame, sent, piece, -1.0, own=True)


class Gathered(Reduction):
    """Everybody sends everything to everybody: for few ranks."""

    pieces = 1

    def finish(self, gradients: BucketGradients, frames: list[bytes]) -> None:
        arrived = self.group.gather(frames[0], gradients.index)
        if not all(map(len, arrived)):
            gradients.values.fill(np.nan)
            return
        self._commit(gradients, frames[0], gradients.sending[0], 0)
        form, parts = gradients.bucket.form(0, 1), self._parts(gradients, 0)
        form.replace(arrived, parts, 1 / self.group.world, gradients.step, self.group.rank, gradients.echoes[0])


class Sharded(Reduction):
    """Every rank owns a piece of each parameter, averages it and shares the average: traffic does not grow with the ranks.

    The memory of a parameter is one array here too: for the pieces of others it holds what their frames kept back, for the own piece
    what the shared average kept back. The own gradient of the own piece needs no frame and is added exactly.
    """

    def __init__(self, group: ByteGroup, memories: Memories, seed: int) -> None:
        super().__init__(group, memories, seed)
        self.pieces = group.world

    def keeps(self, piece: int) -> bool:
        return piece == self.group.rank

    def finish(self, gradients: BucketGradients, frames: list[bytes]) -> None:
        means = self.scatter(gradients, frames, 1 / self.group.world)
        own, sending, shared = self.group.rank, [], b""
        if means is not None:
            ranges = [vectors.scan(mean) for mean in means]
            sending = self._fed(gradients, means, own, [_is_of_zeros(found) for found in ranges])
            shared = self._encoded(gradients, sending, ranges, own, purpose=self.pieces)
        averages = self.group.gather(shared, gradients.index)
        if not all(map(len, averages)):
            gradients.values.fill(np.nan)
            return
        self._commit(gradients, shared, sending, own)
        gradients.values.fill(0)
        for piece, frame in enumerate(averages):
            self._add(gradients, frame, self._parts(gradients, piece), piece, 1.0, own=piece == own)

    def scatter(self, gradients: BucketGradients, frames: list[bytes], weight: float) -> list[Vector] | None:
        """`weight` times the sum over all ranks of the own piece; None if the gradients of any rank are not finite."""
        arrived = self.group.exchange(frames)
        others = [rank for rank in range(self.group.world) if not self.keeps(rank)]
        if not gradients.sending or not all(len(arrived[rank]) for rank in others):
            return None
        for piece in others:
            self._commit(gradients, frames[piece], gradients.sending[piece], piece)
        return self._sums(gradients, arrived, weight)

    def _sums(self, gradients: BucketGradients, arrived: list[Piece], weight: float) -> list[Vector]:
        """Every rank's part is added in the order of ranks, the own one as it is."""
        own = self.group.rank
        parts = self._parts(gradients, own)
        sums = [vectors.zeros(part.size, part) for part in parts]
        for rank, frame in enumerate(arrived):
            if rank == own:
                for total, part in zip(sums, parts, strict=True):
                    vectors.axpy(total, part, weight)
            else:
                self._add(gradients, frame, sums, own, weight)
        return sums


def _is_of_zeros(found: Range) -> bool:
    return found == (0, 0, 0)


def reduction_for(group: ByteGroup, memories: Memories, seed: int, gather_up_to: int) -> Reduction:
    """The way that suits the number of ranks."""
    kind = Gathered if group.world <= gather_up_to else Sharded
    return kind(group, memories, seed)
