"""A model as a value: its floats as one flat float32 vector, for the channels; everything else exactly as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.arrays import FLOATS, as_numpy, dtype_name, from_float32
from perbit.bits import bytes_of
from perbit.channels import Layout
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.values import Shape

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
    def of(cls, tensors: Mapping[str, Any] | Model, exact: Collection[str] = ()) -> Model:
        """A copy of the caller's tensors; those that are not floats, or named in `exact`, are kept exactly."""
        if isinstance(tensors, Model):
            return tensors
        named = {name: as_numpy(x) for name, x in tensors.items()}
        kept = {name: np.array(x) for name, x in named.items() if name in exact or dtype_name(x.dtype) not in FLOATS}
        floats = {name: x for name, x in named.items() if name not in kept}
        return cls(_schema(named), _frozen(Layout.of(floats).flatten(floats)), kept)

    @cached_property
    def layout(self) -> Layout:
        """How the floats lie in the flat vector."""
        return Layout(tuple((name, shape) for name, _, shape in self.schema if name not in self.exact))

    def tensors(self) -> Tensors:
        """All tensors in their own order and dtype; floats may be read-only views."""
        floats = self.layout.split(self.flat)
        return {
            name: from_float32(floats[name], dtype) if name in floats else self.exact[name].copy()
            for name, dtype, _ in self.schema
        }

    def changed(self, flat: F32, exact: Tensors) -> Model:
        """The same tensors with other floats, and some of the others replaced."""
        dtypes = {name: x.dtype.name for name, x in exact.items()}
        schema = tuple((name, dtypes.get(name, dtype), shape) for name, dtype, shape in self.schema)
        return Model(schema, _frozen(flat), {**self.exact, **exact})

    def same_as(self, other: Model) -> bool:
        """Bit for bit the same tensors."""
        if self is other:
            return True
        return self.schema == other.schema and self.checksum == other.checksum and self._same_bytes(other)

    def fits(self, other: Model) -> bool:
        """Whether one can be told by its difference from the other: same names, order and shapes. Dtypes may differ:
        averaging turns counters into floats."""
        shapes, others = ([(name, shape) for name, _, shape in model.schema] for model in (self, other))
        return shapes == others and self.exact.keys() == other.exact.keys()

    def same_types(self, other: Model) -> bool:
        """Whether the coded tensors have the same dtypes; exact ones bring theirs along."""
        mine, theirs = ([part for part in model.schema if part[0] not in model.exact] for model in (self, other))
        return mine == theirs

    def differing(self, other: Model) -> Tensors:
        """The exact tensors of `other` that are not the same here."""
        return {name: x for name, x in other.exact.items() if not _same(x, self.exact[name])}

    @cached_property
    def checksum(self) -> int:
        """CRC-32C of all values, at the speed of memory."""
        checksum = K.crc32c(bytes_of(self.flat), 0)
        for name in sorted(self.exact):
            checksum = K.crc32c(bytes_of(np.ascontiguousarray(self.exact[name])), checksum)
        return checksum

    def _same_bytes(self, other: Model) -> bool:
        """The checksums agree; only now is it worth comparing everything."""
        return bytes_of(self.flat) == bytes_of(other.flat) and not self.differing(other)


def _schema(named: Tensors) -> Schema:
    return tuple((name, dtype_name(x.dtype), x.shape) for name, x in named.items())


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _frozen(flat: F32) -> F32:
    flat.flags.writeable = False
    return flat
