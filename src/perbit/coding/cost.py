"""What decoding costs, and how much of it a receiver pays for.

A frame of forty bytes may stand for a hundred million values, sixteen stages deep. So every stage says what it costs before it starts, and each
number that a frame gives (values kept, components, keys) is paid for before memory is taken for it. What is not paid for is not done: LimitError.

Without limits of the caller's own a frame may take, in bytes of memory and in operations of about a nanosecond,

    memory      64 MiB + 4096 for each byte of the frame + 32 for each value that is expected
    operations  2^25   + 4096 for each byte of the frame + 64 for each value that is expected

where bytes beyond the first 512 KiB of a frame count 128: what nobody expects may take 2 GiB and two seconds, and more only in proportion to
its length.

Expected are the values of `expect_shape`, `expect` or an `out`, of a channel's layout, or as many as `max_values` allows; otherwise none.
A tensor that is expected counts as 4096 values at least: the smallest ones have tables too. Codecs and tensors that a header names
are paid for as well, for a header may be compressed to next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perbit.errors import LimitError

FREE = (1 << 26, 1 << 25)  # memory and operations that any frame may take ...
PER_BYTE, FIRST_BYTES, PER_FURTHER_BYTE = 4096, 1 << 19, 128  # ... and more of both for each of its bytes ...
PER_VALUE = (32, 64)  # ... and for each value that was expected
FEWEST_EXPECTED = 4096  # values that an expected tensor counts for


def expected_values(shapes: Iterable[Sequence[int]]) -> int:
    """How many values tensors of these shapes count for."""
    return sum(max(FEWEST_EXPECTED, math.prod(shape)) for shape in shapes)


@dataclass(frozen=True)
class Cost:
    """Bytes of memory that are held at a time beside the frame, and operations of about a nanosecond."""

    memory: int = 0
    operations: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.memory + other.memory, self.operations + other.operations)


UNLIMITED = Cost((1 << 63) - 1, (1 << 63) - 1)
TO_NAME = Cost(operations=8192)  # each codec and each tensor in a header


class Budget:
    """What the decoding of one frame may still take."""

    def __init__(self, memory: int, operations: int) -> None:
        self.max_memory, self.max_operations = memory, operations
        self.held = self.memory = self.operations = 0

    @property
    def limits(self) -> Cost:
        """The most of both that may be taken."""
        return Cost(self.max_memory, self.max_operations)

    @classmethod
    def of_frame(
        cls, n_bytes: int, expected: int = 0, max_memory: int | None = None, max_operations: int | None = None
    ) -> Budget:
        """The budget of a frame of so many bytes, of which so many values are expected; the caller's own limits come first."""
        first = min(n_bytes, FIRST_BYTES)
        paid = PER_BYTE * first + PER_FURTHER_BYTE * (n_bytes - first)
        return cls(
            FREE[0] + paid + PER_VALUE[0] * expected if max_memory is None else max_memory,
            FREE[1] + paid + PER_VALUE[1] * expected if max_operations is None else max_operations,
        )

    def spend(self, cost: Cost) -> None:
        """Pay for what is about to be done."""
        self.memory += cost.memory
        self.operations += cost.operations
        if self.memory > self.max_memory:
            raise LimitError(_refusal("bytes of memory", self.memory, self.max_memory, "max_memory"))
        if self.operations > self.max_operations:
            raise LimitError(_refusal("operations", self.operations, self.max_operations, "max_operations"))

    @property
    def left(self) -> Cost:
        """What nothing has been spent of yet; as much as a kernel can count."""
        limits = self.limits
        return Cost(
            max(0, min(limits.memory - self.memory, UNLIMITED.memory)),
            max(0, min(limits.operations - self.operations, UNLIMITED.operations)),
        )

    def keep(self, n_bytes: int) -> None:
        """A tensor is done: its bytes are held from now on, its work memory is free again."""
        self.held += n_bytes
        self.memory = self.held


def _refusal(what: str, needed: int, limit: int, name: str) -> str:
    return (
        f"decoding the frame takes {needed} {what} or more, above its limit of {limit}; "
        f"say which shapes you expect or how many values (max_values), or pass a larger {name}"
    )
