"""Messages of any length between the ranks of a torch process group, and how many bytes they cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import _get_default_group

from perbit.coding.bits import Piece
from perbit.torch.traffic import Traffic

_HEAD = 8  # bytes of a message's length
_ROOM = 32  # a block has 1/32 more room than the longest message of the step before


class ByteGroup:
    """All-gather and all-to-all of byte strings. All ranks make the same calls in the same order, from one thread.

    `traffic` counts what leaves this rank, padding and lengths included, and the time that collectives take.
    """

    def __init__(self, group: dist.ProcessGroup, traffic: Traffic | None = None) -> None:
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.traffic = traffic or Traffic()
        self._room: dict[int, int] = {}

    def gather(self, message: Piece, channel: int | None) -> list[Piece]:
        """The message of every rank, in the order of ranks.

        One collective: the length and as many bytes as the longest message of this channel had the last time, and a few more.
        What does not fit follows in a second one; all ranks see all lengths, so they agree on whether it is needed.
        Where lengths say nothing about the next ones, `channel` is None: lengths go first, then what they ask for.
        """
        room = 0 if channel is None else self._room.get(channel, 0)
        head = len(message).to_bytes(_HEAD, "little")
        first = self._all_gather([head, message[:room]], _HEAD + room)
        lengths = [int.from_bytes(row[:_HEAD], "little") for row in first]
        longest = max(lengths)
        if channel is not None:
            self._room[channel] = longest + longest // _ROOM
        parts = [row[_HEAD : _HEAD + length] for row, length in zip(first, lengths, strict=True)]
        if longest <= room:
            return [part.data for part in parts]
        rest = self._all_gather([message[room:]], longest - room)
        return [
            b"".join((part.data, row[: length - part.size].data))
            for part, row, length in zip(parts, rest, lengths, strict=True)
        ]

    def exchange(self, messages: Sequence[Piece]) -> list[Piece]:
        """Message j goes to rank j; what came from rank j is at place j. The one to itself stays empty."""
        lengths = torch.tensor([0 if j == self.rank else len(m) for j, m in enumerate(messages)])
        arriving = torch.empty_like(lengths)
        with self.traffic.timed("wait"):
            dist.all_to_all_single(arriving, lengths, group=self.group)
        outgoing = filled([m for j, m in enumerate(messages) if j != self.rank], int(lengths.sum()))
        incoming = torch.empty(int(arriving.sum()), dtype=torch.uint8)
        with self.traffic.timed("wait"):
            dist.all_to_all_single(incoming, outgoing, arriving.tolist(), lengths.tolist(), group=self.group)
        self.traffic.sent_bytes += outgoing.numel() + _HEAD * (self.world - 1)
        ends = arriving.cumsum(0).tolist()
        whole = incoming.numpy()
        return [whole[end - length : end].data for end, length in zip(ends, arriving.tolist(), strict=True)]

    def _all_gather(self, pieces: Sequence[Piece], n_bytes: int) -> list[NDArray[np.uint8]]:
        block = filled(pieces, n_bytes)
        rows = list(torch.empty((self.world, n_bytes), dtype=torch.uint8).unbind())
        with self.traffic.timed("wait"):
            dist.all_gather(rows, block, group=self.group)
        self.traffic.sent_bytes += n_bytes * (self.world - 1)
        return [row.numpy() for row in rows]


def filled(pieces: Sequence[Piece], n_bytes: int) -> torch.Tensor:
    """The pieces one after the other, then zeros."""
    block = torch.empty(n_bytes, dtype=torch.uint8)
    values, at = block.numpy(), 0
    for piece in pieces:
        values[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    values[at:] = 0
    return block


def own_group(parent: dist.ProcessGroup | None, timeout: timedelta | None = None) -> dist.ProcessGroup:
    """A gloo group of the same ranks for coded bytes alone: they travel on a thread of their own, so their order among the
    engine's other collectives would differ from rank to rank. It waits for a rank as long as the engine's group does."""
    like = parent or _get_default_group()
    group: dist.ProcessGroup = dist.new_group(
        dist.get_process_group_ranks(like),
        timeout=timeout or timeout_of(like),
        backend="gloo",
        use_local_synchronization=parent is not None,
    )
    return group


def for_bytes(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The group itself where it carries tensors of the CPU, as gloo does; else a gloo group of the same ranks, made once."""
    if has_cpu(group):
        return group
    if group not in _beside:
        _beside[group] = own_group(group)
    return _beside[group]


_beside: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def has_cpu(group: dist.ProcessGroup) -> bool:
    try:
        group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return False
    return True


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """How long collectives of this group wait; None, which is torch's own default, where no backend of it says."""
    for device in (torch.device("cpu"), *group._device_types):
        try:
            timeout: timedelta = group._get_backend(device).options._timeout
        except (RuntimeError, AttributeError):  # no backend for this device, or one without options
            continue
        return timeout
    return None
