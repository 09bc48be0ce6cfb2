"""What a channel is: one direction, a memory at each end, and frames that say which memory they were made against.

`send` and `receive` are pure: they take a state and give a new one. Whoever delivers the frame keeps the new state; a
state that is dropped leaves no trace, so a lost message is simply sent again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from perbit.channels import frames
from perbit.channels.agreed import check_agreed, read_raw
from perbit.channels.layout import Layout
from perbit.channels.tree import Memory, freeze
from perbit.coding.bits import Piece, bytes_of
from perbit.errors import DecodeError, StateMismatch
from perbit.frame import wire
from perbit.frame.header import Entry
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.plan.plan import PlanLike
from perbit.randomness import fold

Code = Callable[[F32], F32]  # encodes a vector and gives what the receiver will decode


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """One end of a channel: the number of the next frame, a hash of all frames so far, and the memory (read-only)."""

    layout: Layout
    sequence: int
    link: bytes
    memory: Memory


class Sent(NamedTuple):
    """What `send` gives: bytes for the wire, the receiver's value bit for bit, and the state to keep once delivered."""

    frame: bytes
    value: Any
    state: State


class Channel(ABC):
    """Subclasses are frozen dataclasses that say the arithmetic (`push`, `pull`); numbers, digests and frames are done here."""

    # --- what a subclass says ----------------------------------------------------------------------------------------

    numbered: bool  # whether frames carry a sequence number and a digest

    @abstractmethod
    def plan_at(self, sequence: int) -> PlanLike:
        """The codecs of a frame."""

    @abstractmethod
    def memories(self, n: int) -> tuple[Memory, Memory]:
        """The first memory of the sender and of the receiver."""

    @abstractmethod
    def push(self, x: F32, memory: Memory, layout: Layout, code: Code) -> tuple[F32, Memory]:
        """The sender: call `code` once; give the receiver's value and the new memory."""

    @abstractmethod
    def pull(self, decoded: F32, memory: Memory, layout: Layout) -> tuple[F32, Memory]:
        """The receiver: the value and the new memory."""

    def shared(self, memory: Memory) -> tuple[F32, ...]:
        """The arrays that both ends hold."""
        return ()

    def with_shared(self, memory: Memory, arrays: tuple[F32, ...]) -> Memory:
        """A memory with the shared arrays replaced."""
        return memory

    def expectation(self, state: State) -> F32 | None:
        """What a receiver assumes while no frame arrives; None means zero."""
        return None

    def owed(self, state: State) -> F32 | None:
        """What a sender takes off the point from which it starts to work, because it has not been able to send it; None: nothing."""
        return None

    # --- what everybody calls ----------------------------------------------------------------------------------------

    def omega(self, layout: Layout) -> float:
        """The largest ω its codecs declare for any tensor."""
        return max(self.omegas(layout), default=0.0)

    def omegas(self, layout: Layout) -> list[float]:
        """The ω that the codec of each tensor declares."""
        return [e.codec.omega(_size(e)) for e in self._entries(layout)]

    def unbiased(self, layout: Layout) -> bool:
        """Whether every codec declares that its expected value is its input."""
        return all(entry.codec.unbiased for entry in self._entries(layout))

    def init(self, like: Any) -> tuple[State, State]:
        """The states of sender and receiver, for a number of values, an array, or named tensors (or their shapes)."""
        layout = Layout.of(like)
        sender, receiver = (freeze(memory) for memory in self.memories(layout.n))
        return State(layout, 0, _START, sender), State(layout, 0, _START, receiver)

    def send(self, x: Any, state: State, seed: int) -> Sent:
        """Encode x. The same x, state and seed give the same frame; each number of a sequence draws its own randomness."""
        sent = self.send_flat(state.layout.flatten(x), state, seed)
        return Sent(sent.frame, state.layout.unflatten(sent.value), sent.state)

    def send_flat(self, x: F32, state: State, seed: int) -> Sent:
        """The same for all values as one vector, which spares copies."""
        layout, frame = state.layout, b""
        sequence, digest = (state.sequence, self.digest(state)) if self.numbered else (None, None)

        def code(y: F32) -> F32:
            nonlocal frame
            own = fold(seed, state.sequence)
            made = frames.blueprint_for(self.plan_at(state.sequence), layout, y, own)
            frame, decoded = frames.write(made, y, own, sequence, digest)
            return decoded

        value, memory = self.push(x, state.memory, layout, code)
        return Sent(frame, _frozen(value), _advanced(state, frame, memory))

    def receive(self, frame: Piece, state: State) -> tuple[Any, State]:
        """Decode a frame; StateMismatch if it was not made against this state."""
        value, after = self.receive_flat(frame, state)
        return state.layout.unflatten(value), after

    def receive_flat(self, frame: Piece, state: State) -> tuple[F32, State]:
        """The same with all values as one vector."""
        layout, plan = state.layout, self.plan_at(state.sequence)
        expected = frames.blueprint(plan, layout)
        opened = frames.read(frame, expected)
        if self.numbered:
            self._check(opened.sequence, opened.digest, state)
        check_agreed(opened.entries, expected.entries, plan)
        value, memory = self.pull(opened.values(), state.memory, layout)
        return _frozen(value), _advanced(state, frame, memory)

    def replay(self, missed: Iterable[Piece], state: State) -> tuple[Any, State]:
        """Receive kept frames in the order of their numbers; those received before are passed over. The value is the last one's."""
        value = None
        for frame in sorted(missed, key=frames.number):
            if frames.number(frame) >= state.sequence:
                value, state = self.receive(frame, state)
        return value, state

    def reset(self, state: State) -> bytes:
        """A frame that gives a receiver the sender's shared memory, whatever it held before. The sender's state stays as it is,
        so the other receivers of a broadcast notice nothing."""
        arrays = {str(index): array for index, array in enumerate(self.shared(state.memory))}
        return wire.write_raw(arrays, sequence=state.sequence, digest=state.link)

    def resync(self, frame: Piece, state: State) -> State:
        """The receiver's state after a reset frame."""
        held = self.shared(state.memory)
        header = wire.read_header(frame, state.layout.n * len(held))
        if header.sequence is None or header.digest is None:
            raise DecodeError("this is no reset frame: it carries no sequence number")
        arrays = read_raw(frame, {str(index): array.shape for index, array in enumerate(held)})
        memory = self.with_shared(state.memory, tuple(arrays.values()))
        return State(state.layout, header.sequence, header.digest, freeze(memory))

    def digest(self, state: State) -> bytes:
        """Eight bytes that two ends agree on if and only if the same frames passed and the same memory is held.

        The hash of the frames costs what the frames cost, not what the model costs; the CRC of the memory, at the speed
        of memory, also catches a memory that was damaged or restored from the wrong place.
        """
        checksum = 0
        for array in self.shared(state.memory):
            checksum = K.crc32c(bytes_of(array), checksum)
        return _hash(state.link, checksum.to_bytes(4, "little"))

    def _check(self, sequence: int | None, digest: bytes | None, state: State) -> None:
        if sequence is None or digest is None:
            raise StateMismatch(
                "the frame carries no sequence number, but this channel needs one; use the same channel"
            )
        if sequence != state.sequence:
            raise _out_of_order(sequence, state.sequence)
        if digest != (own := self.digest(state)):
            raise StateMismatch(
                f"frame {sequence} was made against memory {digest.hex()}, the receiver holds {own.hex()}; "
                "ask the sender for a reset",
                *(sequence, state.sequence),
            )

    def _entries(self, layout: Layout) -> tuple[Entry, ...]:
        return frames.blueprint(self.plan_at(1 << 62), layout).entries


def _out_of_order(sequence: int, expected: int) -> StateMismatch:
    if sequence < expected:
        said = f"frame {sequence} was received before (the receiver is at {expected}); drop it"
    else:
        which = f"frame {expected}" if sequence == expected + 1 else f"frames {expected} to {sequence - 1}"
        said = (
            f"{which} did not arrive, this is frame {sequence}; replay what is missing, or ask the sender for a reset"
        )
    return StateMismatch(said, sequence, expected)


def _hash(link: bytes, data: Piece) -> bytes:
    hashed = blake2b(link, digest_size=8)
    hashed.update(data)
    return hashed.digest()


_START = bytes(8)


def _advanced(state: State, frame: Piece, memory: Memory) -> State:
    return State(state.layout, state.sequence + 1, _hash(state.link, frame), freeze(memory))


def _frozen(array: F32) -> F32:
    array.flags.writeable = False
    return array


def _size(entry: Entry) -> int:
    return int(np.prod(entry.shape))
