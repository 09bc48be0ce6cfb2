"""A model as a value: its floats as one flat float32 vector, for the channels; everything else exactly as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.arrays import FLOATS, as_numpy, from_float32
from perbit.bits import bytes_of
from perbit.channels import Layout
from perbit.codec import Shape
from perbit.kernels import K
from perbit.kernels.api import F32

Tensors = dict[str, NDArray[Any]]
Schema = tuple[tuple[str, str, Shape], ...]  # name, dtype and shape of each tensor, in order


@dataclass(frozen=True, eq=False)
class Model:
    """Tensors with names. Integers and truth values (counters, masks) are `exact`; nothing is ever rounded there.

    >>> model = Model.of({"w": np.ones((2, 2)), "steps": np.array(7)})
    >>> model.flat.tolist(), {name: value.dtype.name for name, value in model.tensors().items()}
    ([1.0, 1.0, 1.0, 1.0], {'w': 'float64', 'steps': 'int64'})
    """

    schema: Schema
    flat: F32
    exact: Tensors

    @classmethod
    def of(cls, tensors: Mapping[str, Any] | Model) -> Model:
        """A copy of the caller's tensors."""
        if isinstance(tensors, Model):
            return tensors
        named = {name: as_numpy(x) for name, x in tensors.items()}
        schema = tuple((name, x.dtype.name, x.shape) for name, x in named.items())
        floats = {name: x for name, x in named.items() if x.dtype.name in FLOATS}
        exact = {name: np.array(x) for name, x in named.items() if name not in floats}
        return cls(schema, _frozen(layout_of(schema).flatten(floats)), exact)

    @cached_property
    def layout(self) -> Layout:
        """How the floats lie in the flat vector."""
        return layout_of(self.schema)

    def tensors(self) -> Tensors:
        """All tensors in their own order and dtype; floats may be read-only views."""
        floats = self.layout.split(self.flat)
        return {
            name: from_float32(floats[name], dtype) if name in floats else self.exact[name].copy()
            for name, dtype, _ in self.schema
        }

    def changed(self, flat: F32, exact: Tensors) -> Model:
        """The same tensors with other floats, and some of the others replaced."""
        return Model(self.schema, _frozen(flat), {**self.exact, **exact})

    def same_as(self, other: Model) -> bool:
        """Bit for bit the same tensors."""
        if self is other:
            return True
        return self.schema == other.schema and self.checksum == other.checksum and self._same_bytes(other)

    def fits(self, other: Model) -> bool:
        """Whether the names, order and shapes are the same, and the dtypes too except among floats."""
        return self.layout == other.layout and _exact_part(self.schema) == _exact_part(other.schema)

    def differing(self, other: Model) -> Tensors:
        """The exact tensors of `other` that are not the same here."""
        return {name: x for name, x in other.exact.items() if not np.array_equal(x, self.exact[name])}

    @cached_property
    def checksum(self) -> int:
        """CRC-32C of all values, at the speed of memory."""
        checksum = K.crc32c(bytes_of(self.flat), 0)
        for x in self.exact.values():
            checksum = K.crc32c(bytes_of(np.ascontiguousarray(x)), checksum)
        return checksum

    def _same_bytes(self, other: Model) -> bool:
        """The checksums agree; only now is it worth comparing everything."""
        return bytes_of(self.flat) == bytes_of(other.flat) and not self.differing(other)


def layout_of(schema: Schema) -> Layout:
    """The layout of the floats of a model."""
    return Layout(tuple((name, shape) for name, dtype, shape in schema if dtype in FLOATS))


def _exact_part(schema: Schema) -> Schema:
    return tuple(entry for entry in schema if entry[1] not in FLOATS)


def _frozen(flat: F32) -> F32:
    flat.flags.writeable = False
    return flat
