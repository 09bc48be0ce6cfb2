"""How the values of a model lie in one flat vector: channels do their arithmetic there, callers see tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from perbit.coding.arrays import FLOATS, as_numpy
from perbit.coding.values import Shape, size
from perbit.errors import EncodeError
from perbit.kernels.api import F32

Tensors = F32 | Mapping[str, F32]  # one array, or the named tensors of a model


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors of a model; a lone array is a tensor without a name.

    >>> layout = Layout.of({"w": (2, 2), "b": (3,)})
    >>> flat = layout.flatten({"w": np.eye(2), "b": np.zeros(3)})
    >>> flat.size, layout.unflatten(flat)["w"].tolist()
    (7, [[1.0, 0.0], [0.0, 1.0]])
    >>> Layout.of(5).unflatten(np.ones(5, np.float32)).shape
    (5,)
    """

    tensors: tuple[tuple[str, Shape], ...]

    @classmethod
    def of(cls, like: Any) -> Layout:
        """From a number of values, an array, or a mapping of names to shapes or arrays."""
        if isinstance(like, Layout):
            return like
        if isinstance(like, Mapping):
            if "" in like:
                raise ValueError("a tensor of a model needs a name")
            return cls(tuple((name, _shape(value)) for name, value in like.items()))
        return cls((("", _shape(like)),))

    @cached_property
    def is_array(self) -> bool:
        return len(self.tensors) == 1 and self.tensors[0][0] == ""

    @cached_property
    def n(self) -> int:
        return sum(size(shape) for _, shape in self.tensors)

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Where each tensor begins and ends."""
        ends = np.cumsum([0] + [size(shape) for _, shape in self.tensors]).tolist()
        return tuple(pairwise(ends))

    def flatten(self, x: Any) -> F32:
        """All values as one float32 vector; never the caller's own memory for models, maybe for arrays."""
        if self.is_array:
            return _floats("", x, self.tensors[0][1]).reshape(-1)
        if not isinstance(x, Mapping) or x.keys() != dict(self.tensors).keys():
            got = sorted(x) if isinstance(x, Mapping) else type(x).__name__
            raise EncodeError(f"the channel was set up for tensors {[name for name, _ in self.tensors]}, got {got}")
        flat = np.empty(self.n, np.float32)
        for (name, shape), (lo, hi) in zip(self.tensors, self.bounds, strict=True):
            flat[lo:hi] = _floats(name, x[name], shape).reshape(-1)
        return flat

    def split(self, flat: F32) -> dict[str, F32]:
        """Each tensor as a view of the vector."""
        pieces = zip(self.tensors, self.bounds, strict=True)
        return {name: flat[lo:hi].reshape(shape) for (name, shape), (lo, hi) in pieces}

    def unflatten(self, flat: F32) -> Any:
        """The inverse of `flatten`: an array, or a dict of arrays."""
        return flat.reshape(self.tensors[0][1]) if self.is_array else self.split(flat)


def _shape(like: Any) -> Shape:
    if isinstance(like, int | np.integer):
        return (int(like),)
    if isinstance(like, tuple):
        return tuple(int(n) for n in like)
    return tuple(int(n) for n in like.shape)


def _floats(name: str, x: Any, shape: Shape) -> F32:
    is_good = type(x) is np.ndarray and x.dtype == np.float32 and x.shape == shape
    if is_good and x.flags.c_contiguous and x.flags.aligned:
        return x  # type: ignore[no-any-return]
    array = as_numpy(x)
    what = f"tensor {name!r}" if name else "the array"
    if array.shape != shape:
        raise EncodeError(f"{what} has shape {array.shape}, the channel was set up for {shape}")
    if array.dtype.name not in FLOATS:
        raise EncodeError(f"{what} is {array.dtype.name}; channels carry floats, send the rest with perbit.dumps")
    return np.asarray(array, np.float32, order="C")
