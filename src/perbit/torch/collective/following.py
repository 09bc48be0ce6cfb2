"""A tensor that lies in shards, one on each rank, while every rank holds a copy of the whole: kept up to date by coded differences.

The copy is the same on all ranks, bit for bit. The owner of a shard codes its difference to the copy, so what a frame left out is part of
the next difference: nothing is lost, and the owner's own values stay exact. (SDP4Bit, Jia et al., NeurIPS 2024, codes such differences.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from perbit.coding.bits import Piece
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.randomness import fold, key_from_seed
from perbit.torch.collective.buckets import Bucket
from perbit.torch.collective.bytegroup import ByteGroup

_VALUES, _DIFFERENCES = b"\0", b"\1"  # what a message begins with; an empty one says that nothing changed
_FAR = 0.25  # differences longer than this, in lengths of the parameters, are not steps of an optimizer
_UINT = np.uint32


class Followed:
    """The copy of one sharded module.

    Args:
        bucket: the parameters of a shard, one after the other.
        seed: of random choices; every rank, call and parameter draws its own.
    """

    def __init__(self, bucket: Bucket, seed: int) -> None:
        self.bucket, self.seed = bucket, seed
        self.count = 0
        self.copy: F32 | None = None  # shard after shard
        self._own: F32 | None = None  # the own part of the copy, before the others' parts have come
        self._coded: F32 | None = None  # the own shard when it was last coded

    def encode(self, shard: F32, rank: int) -> tuple[bytes, bytes]:
        """What this rank's part of the copy is at first (only as long as there is no copy), and what changes it."""
        if self.copy is not None:
            own, first = self._part(self.copy, rank), b""
        else:
            own = shard.copy() if self._own is None else self._own
            first = own.tobytes()
        if self._coded is None:
            self._coded = shard.copy()
            return first, b""
        if np.array_equal(shard.view(_UINT), self._coded.view(_UINT)):
            return first, b""
        self._coded = shard.copy()
        return first, self._change(shard, own, rank)

    def follow(self, first: bytes, change: bytes, group: ByteGroup) -> F32:
        """The copy after the changes of all ranks."""
        if self.copy is None:
            parts = [np.frombuffer(part, np.float32) for part in group.gather(first, None)]
            self.copy = np.concatenate(parts)
        arrived = group.gather(change, None)
        for rank, message in enumerate(arrived):
            self._apply(message, self._part(self.copy, rank))
        self._own = self._part(self.copy, group.rank)
        self.count += 1
        return self.copy

    def state_dict(self) -> dict[str, Any]:
        """The own part alone: the others have theirs."""
        own, coded = self._own, self._coded
        if own is None or coded is None:
            return {"count": self.count}
        return {"count": self.count, "copy": torch.from_numpy(own.copy()), "coded": torch.from_numpy(coded.copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.copy, self.count = None, int(state["count"])
        self._own, self._coded = (_array(state[key]) if key in state else None for key in ("copy", "coded"))

    def _change(self, shard: F32, own: F32, rank: int) -> bytes:
        """Differences; values where a codec is exact, or where differences cannot be coded."""
        parts = self._parts(shard)
        sent = [
            part if parameter.is_exact else part - held
            for parameter, part, held in zip(self.bucket.parameters, parts, self._parts(own), strict=True)
        ]
        if any(K.scan(part)[2] for part in sent) or self._is_far(sent, parts):  # NaN, infinity, or another model
            return _VALUES + shard.tobytes()
        key = fold(fold(key_from_seed(self.seed), rank), self.count)
        keys = [fold(key, K.crc32c(parameter.name.encode())) for parameter in self.bucket.parameters]
        return _DIFFERENCES + self.bucket.form(0, 1).encode(sent, keys, self.count)[0]

    def _is_far(self, differences: list[F32], parts: list[F32]) -> bool:
        """Whether so much is new that its coding error would be felt, as when other parameters were loaded."""
        coded = [index for index, parameter in enumerate(self.bucket.parameters) if not parameter.is_exact]
        moved, long = (sum(K.moments(arrays[index])[2] for index in coded) for arrays in (differences, parts))
        return bool(moved > _FAR**2 * long)

    def _apply(self, message: Piece, held: F32) -> None:
        if not len(message):
            return
        body = memoryview(message)[1:]
        if bytes(message[:1]) == _VALUES:
            held[:] = np.frombuffer(body, np.float32)
            return
        parts = self._parts(held)
        for parameter, part in zip(self.bucket.parameters, parts, strict=True):
            if parameter.is_exact:
                part.fill(0)
        self.bucket.form(0, 1).add(body, parts, 1.0, self.count)

    def _part(self, copy: F32, rank: int) -> F32:
        n = self.bucket.n
        return copy[rank * n : (rank + 1) * n]

    def _parts(self, shard: F32) -> list[F32]:
        return [shard[parameter.start : parameter.stop] for parameter in self.bucket.parameters]


def _array(tensor: torch.Tensor) -> F32:
    values: F32 = tensor.to("cpu", torch.float32).flatten().clone().numpy()
    return values
