"""Arrays that lie where the host's kernels cannot read them, such as on a GPU: what frames need of them, in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from numpy.typing import NDArray

from perbit.coding.bits import Reader
from perbit.coding.codec import FloatCodec, Pipeline, Rest
from perbit.coding.values import Floats, Shape
from perbit.kernels.api import F32


class Afar(ABC):
    """An array of floats; perbit.torch.device has one."""

    shape: Shape

    @property
    @abstractmethod
    def size(self) -> int:
        """How many values."""

    @abstractmethod
    def reshape(self, shape: Shape | int) -> Afar:
        """The same memory in another shape."""

    @abstractmethod
    def floats(self) -> Floats:
        """Its values for a codec."""

    @abstractmethod
    def on_host(self) -> NDArray[Any]:
        """A copy, for an error that counts what is wrong with it."""

    @abstractmethod
    def axpy(self, values: F32, weight: float) -> None:
        """Add `weight` times these values."""

    @abstractmethod
    def add(self, src: Reader, shape: Shape, rest: Rest, weight: float) -> None:
        """Add `weight` times the next tensor of a frame."""


def works_afar(codec: Pipeline) -> bool:
    """Whether a codec finds out what it needs without reading all values itself."""
    first = codec.stages[0]
    return isinstance(first, FloatCodec) and first.works_afar
