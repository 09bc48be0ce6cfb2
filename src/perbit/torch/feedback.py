"""Error feedback: what compression kept back, by tensor, worked on in place.

A memory m first becomes v = g + γ·m, which is encoded from there; once the frame is delivered its values are taken off, m ← v - C(v).
Between the two the memory holds what is under way, so a step that fails is not lost: it is sent with the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from perbit.coding.codec import Pipeline
from perbit.coding.values import Recall
from perbit.kernels.api import F32
from perbit.torch import vectors

if TYPE_CHECKING:
    from perbit.torch.vectors import Vector


def decay(error_feedback: bool | float, codec: Pipeline, n: int) -> float | None:
    """γ for a tensor of n values, None for no memory. True is 1 for biased codecs; unbiased ones average out by themselves."""
    if error_feedback is False or codec.omega(n) == 0 or (error_feedback is True and codec.unbiased):
        return None
    return float(error_feedback)


def check_decay(error_feedback: bool | float) -> None:
    if not 0 <= error_feedback <= 1:
        raise ValueError(f"error_feedback is True, False or a decay between 0 and 1, got {error_feedback}")


class Memories:
    """One flat array for each tensor that has a memory, and what an encoder recalls of each tensor, or of each piece of it."""

    def __init__(self) -> None:
        self.arrays: dict[str, Vector] = {}
        self.recalls: dict[str, Recall] = {}

    def of(self, name: str, n: int, like: Vector | None = None) -> Vector:
        """The memory of a tensor, zeros at first; where `like` lies, if it is given."""
        known = self.arrays.get(name)
        found = self.arrays[name] = vectors.zeros(n, like) if known is None else vectors.placed(known, like)
        if found.size != n:
            raise ValueError(
                f"the error memory of {name!r} has {found.size} values, the tensor {n}; the checkpoint is of another model"
            )
        return found

    def recall(self, name: str) -> Recall:
        """Nothing at first."""
        return self.recalls.setdefault(name, Recall())

    def scale(self, factor: float) -> None:
        """Multiply all memories, as when the unit of the gradients changes."""
        for array in self.arrays.values():
            vectors.scale(array, factor)

    def norms(self) -> dict[str, float]:
        """The Euclidean norm of every memory."""
        return {name: vectors.norm(array) for name, array in self.arrays.items()}

    def taken(self, names: Iterable[str]) -> dict[str, F32]:
        """The memories of these tensors, which are empty from now on."""
        return {name: vectors.on_host(self.arrays.pop(name)) for name in names if name in self.arrays}

    def copies(self) -> dict[str, F32]:
        return {name: vectors.on_host(array) for name, array in self.arrays.items()}

    def recalled(self) -> dict[str, F32]:
        """Copies of what is recalled."""
        return {name: recall.found.copy() for name, recall in self.recalls.items() if recall.found is not None}

    def load(self, arrays: Mapping[str, Any], recalled: Mapping[str, Any]) -> None:
        """Take over copies of these arrays or tensors."""
        self.arrays = {name: _copy(array).reshape(-1) for name, array in arrays.items()}
        self.recalls = {name: Recall(_copy(found)) for name, found in recalled.items()}


def _copy(array: Any) -> F32:
    copy: F32 = torch.as_tensor(array).to("cpu", torch.float32).clone().contiguous().numpy()
    return copy


def fed(g: Vector, memory: Vector | None, gamma: float, is_zero: bool) -> Vector:
    """What to encode for gradient g: the memory, which now holds g + γ·m, or g itself where there is none.

    Where a whole gradient is zero the memory waits: an engine may drop what arrives for a parameter that nobody used.
    """
    if memory is None or is_zero:
        return g
    vectors.feed(memory, g, gamma)
    return memory
