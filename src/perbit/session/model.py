"""A model as a value: its floats as one flat float32 vector, for the channels; everything else exactly as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.channels import Layout
from perbit.coding.arrays import FLOATS, as_numpy, dtype_name, from_float32, item_size
from perbit.coding.bits import Piece, bytes_of
from perbit.coding.codec import as_pipeline
from perbit.coding.families.formats import Raw
from perbit.coding.values import Shape, size
from perbit.errors import DecodeError, EncodeError
from perbit.frame import wire
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
    def of(cls, tensors: Mapping[str, Any] | Model, like: Model | None = None) -> Model:
        """A copy of the caller's tensors; those that are not floats are kept exactly.

        Args:
            tensors: arrays or torch tensors by name.
            like: what was agreed before. The same tensors then have its order and its dtypes, whatever an optimiser at the server
                made of them: a counter that a mean turned into a float stays exact, a float64 that was a float32 is one again.
        """
        if isinstance(tensors, Model):
            return tensors if like is None or like.schema == tensors.schema else cls.of(tensors.tensors(), like)
        named = {name: as_numpy(x) for name, x in tensors.items()}
        agreed = like if like is not None and like.agrees_with(named) else None
        if agreed is not None:
            named = {name: named[name] for name, _, _ in agreed.schema}
        exact = agreed.exact if agreed is not None else ()
        kept = {name: np.array(x) for name, x in named.items() if name in exact or dtype_name(x.dtype) not in FLOATS}
        if agreed is not None:
            kept = {name: _as_agreed(name, x, agreed.exact[name].dtype) for name, x in kept.items()}
        floats = {name: x for name, x in named.items() if name not in kept}
        flat = Layout.of(floats).flatten(floats)
        return cls(_schema(named) if agreed is None else agreed.schema, frozen(flat), kept)

    def agrees_with(self, named: Mapping[str, NDArray[Any]]) -> bool:
        """Whether these are tensors of the same names and shapes, and all that are exact here may be so there."""
        shapes = {name: x.shape for name, x in named.items()}
        floats = {name for name, x in named.items() if dtype_name(x.dtype) in FLOATS}
        return shapes == {name: shape for name, _, shape in self.schema} and floats >= self.floats.keys()

    @cached_property
    def floats(self) -> dict[str, Shape]:
        """The tensors that are coded."""
        return {name: shape for name, _, shape in self.schema if name not in self.exact}

    @cached_property
    def layout(self) -> Layout:
        """How the floats lie in the flat vector."""
        return Layout(tuple(self.floats.items()))

    @cached_property
    def exact_kinds(self) -> dict[str, tuple[str, Shape]]:
        """The dtype and the shape of each exact tensor."""
        return {name: (dtype, shape) for name, dtype, shape in self.schema if name in self.exact}

    @property
    def n_bytes(self) -> int:
        """What the tensors take as they are."""
        coded = sum(size(shape) * item_size(dtype) for name, dtype, shape in self.schema if name not in self.exact)
        return coded + sum(x.nbytes for x in self.exact.values())

    def tensors(self, names: Collection[str] | None = None) -> Tensors:
        """All tensors, or those of these names, in their own order and dtype; floats may be read-only views."""
        floats = self.layout.split(self.flat)
        return {
            name: from_float32(floats[name], dtype) if name in floats else self.exact[name].copy()
            for name, dtype, _ in self.schema
            if names is None or name in names
        }

    def changed(self, flat: F32, exact: Tensors) -> Model:
        """The same tensors with other floats, and some of the others replaced."""
        return Model(self.schema, frozen(flat), {**self.exact, **exact})

    def with_exact(self, given: Mapping[str, Any]) -> Model:
        """The same floats, with new values of some of the others."""
        values = {name: np.array(as_numpy(x)) for name, x in given.items()}
        for name, x in values.items():
            if name not in self.exact or x.shape != self.exact[name].shape:
                raise EncodeError(f"the model has no exact tensor {name!r} of shape {x.shape}")
        return self.changed(
            self.flat, {name: _as_agreed(name, x, self.exact[name].dtype) for name, x in values.items()}
        )

    def same_as(self, other: Model) -> bool:
        """Bit for bit the same tensors."""
        if self is other:
            return True
        return self.schema == other.schema and self.checksum == other.checksum and self._same_bytes(other)

    def differing(self, other: Model) -> Tensors:
        """The exact tensors of `other` that are not the same here."""
        return {name: x for name, x in other.exact.items() if name not in self.exact or not same(x, self.exact[name])}

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


def partial(tensors: Mapping[str, Any], received: Model) -> tuple[tuple[str, ...] | None, Model]:
    """What a client answers with: which tensors (None: all), and a model that is as received in the others."""
    unknown = tensors.keys() - {name for name, _, _ in received.schema}
    if unknown:
        raise EncodeError(f"the answer holds {sorted(unknown)[0]!r}, which the model received does not")
    if not tensors and received.schema:
        raise EncodeError("the answer holds no tensor; answer without an argument if there is nothing to send")
    model = Model.of({**received.tensors(), **tensors}, received)
    if model.schema != received.schema or model.exact.keys() != received.exact.keys():
        raise EncodeError("the answer must have tensors of the names and shapes that were received")
    names = tuple(name for name, _, _ in received.schema if name in tensors)
    return (None if len(names) == len(received.schema) else names), model


def answered(layout: Layout, names: Collection[str] | None) -> Layout:
    """The coded tensors among those a client answers with (None: all)."""
    return layout if names is None else Layout(tuple(part for part in layout.tensors if part[0] in names))


def pack_exact(changed: Tensors) -> bytes:
    """Exact tensors for a message; mostly none have changed, and then there are no bytes."""
    return wire.write_raw(changed) if changed else b""


def read_exact(data: Piece, agreed: Mapping[str, tuple[str, Shape]]) -> Tensors:
    """What `pack_exact` wrote: some of these tensors, raw, in the dtypes and shapes that were agreed."""
    if not len(data):
        return {}
    header = wire.read_header(data, sum(size(shape) for _, shape in agreed.values()))
    for entry in header.entries:
        if agreed.get(entry.name) != (entry.dtype, entry.shape) or entry.codec != as_pipeline(Raw()):
            said = f"{entry.name!r} as {entry.dtype} {entry.shape} by {str(entry.codec)[:200]!r}"
            raise DecodeError(f"the frame holds {said}, which is not what was agreed for exact tensors")
    return wire.loads(data)


def frozen(flat: F32) -> F32:
    """The same vector, read-only: models are values."""
    flat.flags.writeable = False
    return flat


def _as_agreed(name: str, x: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An exact tensor keeps its dtype: a counter that a mean made a float is the nearest whole number again."""
    if x.dtype == dtype:
        return x
    if not np.isfinite(np.asarray(x, np.float64)).all():
        raise EncodeError(f"{name!r} was agreed as {dtype_name(dtype)}, but is not finite")
    if dtype.kind == "b":
        return np.asarray(np.asarray(x, np.float64) >= 0.5)
    limits = np.iinfo(dtype)
    if x.dtype.kind in "biu":
        fitting: NDArray[Any] = np.clip(x, max(limits.min, _lowest(x)), min(limits.max, _highest(x)))
    else:
        fitting = np.clip(np.rint(np.asarray(x, np.float64)), limits.min, np.nextafter(float(limits.max) + 1, 0))
    return np.asarray(fitting.astype(dtype))


def _lowest(x: NDArray[Any]) -> int:
    return 0 if x.dtype.kind == "b" else int(np.iinfo(x.dtype).min)


def _highest(x: NDArray[Any]) -> int:
    return 1 if x.dtype.kind == "b" else int(np.iinfo(x.dtype).max)


def _schema(named: Tensors) -> Schema:
    return tuple((name, dtype_name(x.dtype), x.shape) for name, x in named.items())


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Bit for bit the same array."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
