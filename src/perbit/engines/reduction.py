"""The mean of a bucket over all ranks, by coded bytes. Every rank adds the same decoded frames in the same order: all get the same bits.

Up to a few ranks, everybody sends its frame to everybody. Beyond, that traffic would grow with the number of ranks, so each rank owns a
piece of every parameter: it gets that piece from all others, averages, and sends the average to everybody, coded once more.

A gradient with NaN or infinity cannot be coded. Its rank sends an empty message instead, and the mean is NaN on every rank, as it would be
without compression; what the other ranks had to send stays in their memories.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from perbit.bits import Piece
from perbit.codec import Pipeline
from perbit.engines.bytegroup import ByteGroup
from perbit.engines.coding import Sheet, cuts
from perbit.engines.feedback import Memories, fed
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.randomness import fold, key_from_seed
from perbit.values import Shape


@dataclass(frozen=True)
class Slot:
    """One parameter in a bucket: values [lo, hi) of it."""

    name: str
    shape: Shape
    codec: Pipeline
    gamma: float | None  # of its error memory
    lo: int
    hi: int


@dataclass(frozen=True, eq=False)
class Contents:
    """The parameters of a bucket. Made once and known by identity: what follows from them is looked up at every step."""

    slots: tuple[Slot, ...]

    @property
    def has_memory(self) -> bool:
        return any(slot.gamma is not None for slot in self.slots)

    @cache  # noqa: B019  a model has few buckets, and they last as long as the training
    def bounds(self, piece: int, pieces: int) -> list[tuple[int, int]]:
        """Where the piece of each parameter begins and ends within it."""
        return [list(cuts(slot.hi - slot.lo, pieces))[piece] for slot in self.slots]

    @cache  # noqa: B019
    def sheet(self, piece: int, pieces: int) -> Sheet:
        """For the frames of a piece. A whole parameter keeps its shape, a piece of one is a vector."""
        bounds = self.bounds(piece, pieces)
        shapes = [slot.shape if pieces == 1 else (hi - lo,) for slot, (lo, hi) in zip(self.slots, bounds, strict=True)]
        return Sheet.of([(slot.name, shape, slot.codec) for slot, shape in zip(self.slots, shapes, strict=True)])


@dataclass(eq=False)
class Job:
    """One bucket of one step: its gradients, which become their mean."""

    contents: Contents
    values: F32
    step: int
    bucket: int
    sending: list[list[F32]] = field(default_factory=list)  # what is encoded for each piece


class Reduction(ABC):
    """`encode` runs as soon as a bucket is ready; `finish` on another thread, which alone talks to the other ranks."""

    pieces: int

    def __init__(self, group: ByteGroup, memories: Memories, seed: int) -> None:
        self.group, self.memories = group, memories
        self.key = fold(key_from_seed(seed), group.rank)

    def encode(self, job: Job) -> list[bytes]:
        """A frame for each piece; all empty if the bucket holds NaN or infinity."""
        ranges = [K.scan(job.values[slot.lo : slot.hi]) for slot in job.contents.slots]
        if any(n_nonfinite for _, _, n_nonfinite in ranges):
            return [b""] * self.pieces
        waiting = [low == high == 0 for low, high, _ in ranges]
        job.sending = [
            [] if self.keeps(piece) else self._fed(job, self._parts(job, piece), piece, waiting)
            for piece in range(self.pieces)
        ]
        return [
            b"" if self.keeps(piece) else self._encoded(job, job.sending[piece], piece, purpose=piece)
            for piece in range(self.pieces)
        ]

    @abstractmethod
    def finish(self, job: Job, frames: list[bytes]) -> None:
        """Replace the values of the bucket by their mean over all ranks."""

    def keeps(self, piece: int) -> bool:
        """Whether this rank averages the piece itself, and so need not encode it for anybody."""
        return False

    def _parts(self, job: Job, piece: int) -> list[F32]:
        """The piece of every parameter, as views of the bucket."""
        return [
            job.values[slot.lo + lo : slot.lo + hi]
            for slot, (lo, hi) in zip(job.contents.slots, job.contents.bounds(piece, self.pieces), strict=True)
        ]

    def _fed(self, job: Job, gradients: list[F32], piece: int, waiting: list[bool]) -> list[F32]:
        """The gradients with what was kept back before."""
        bounds = job.contents.bounds(piece, self.pieces)
        return [
            g if slot.gamma is None else fed(g, self._memory(slot)[lo:hi], slot.gamma, waits)
            for slot, g, (lo, hi), waits in zip(job.contents.slots, gradients, bounds, waiting, strict=True)
        ]

    def _memory(self, slot: Slot) -> F32:
        return self.memories.of(slot.name, slot.hi - slot.lo)

    def _encoded(self, job: Job, parts: Sequence[F32], piece: int, purpose: int) -> bytes:
        """The frame of a piece. Keys go by parameter and step, so that how parameters fall into buckets changes nothing."""
        key = fold(fold(self.key, job.step), purpose)
        keys = [fold(key, K.crc32c(slot.name.encode())) for slot in job.contents.slots]
        return job.contents.sheet(piece, self.pieces).encode(parts, keys, job.step)

    def _add(self, job: Job, frame: Piece, outs: Sequence[F32], piece: int, weight: float) -> None:
        job.contents.sheet(piece, self.pieces).add(frame, outs, weight, job.step)

    def _commit(self, job: Job, frame: Piece, sent: list[F32], piece: int) -> None:
        """A frame was delivered: take its values off the memories. (Where there is no memory, off gradients about to be replaced.)"""
        if job.contents.has_memory:
            self._add(job, frame, sent, piece, -1.0)


class Gathered(Reduction):
    """Everybody sends everything to everybody: for few ranks."""

    pieces = 1

    def finish(self, job: Job, frames: list[bytes]) -> None:
        arrived = self.group.gather(frames[0], job.bucket)
        if not all(map(len, arrived)):
            job.values.fill(np.nan)
            return
        self._commit(job, frames[0], job.sending[0], 0)
        job.values.fill(0)
        for frame in arrived:
            self._add(job, frame, self._parts(job, 0), 0, 1 / self.group.world)


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

    def finish(self, job: Job, frames: list[bytes]) -> None:
        arrived = self.group.exchange(frames)
        others = [rank for rank in range(self.group.world) if not self.keeps(rank)]
        is_finite = bool(job.sending) and all(len(arrived[rank]) for rank in others)
        own, shared = self.group.rank, b""
        if is_finite:
            for piece in others:
                self._commit(job, frames[piece], job.sending[piece], piece)
            sending = self._average(job, arrived)
            shared = self._encoded(job, sending, own, purpose=self.pieces)
        averages = self.group.gather(shared, job.bucket)
        if not all(map(len, averages)):
            job.values.fill(np.nan)
            return
        self._commit(job, shared, sending, own)
        job.values.fill(0)
        for piece, frame in enumerate(averages):
            self._add(job, frame, self._parts(job, piece), piece, 1.0)

    def _average(self, job: Job, arrived: list[Piece]) -> list[F32]:
        """The mean of the own piece over all ranks, added in their order, with what was kept back of it before."""
        own, weight = self.group.rank, 1 / self.group.world
        gradients = self._parts(job, own)
        means = [np.zeros_like(part) for part in gradients]
        for rank, frame in enumerate(arrived):
            if rank == own:
                for mean, gradient in zip(means, gradients, strict=True):
                    K.axpy(mean, gradient, weight)
            else:
                self._add(job, frame, means, own, weight)
        return self._fed(job, means, own, [not mean.any() for mean in means])
