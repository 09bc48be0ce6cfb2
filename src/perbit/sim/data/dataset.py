"""What a data set is: a train and a test split, and the facts a model needs to be built for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perbit.errors import PerbitError

Array = NDArray[Any]
Kind = Literal["image", "text", "series", "ratings", "tabular"]


class DataError(PerbitError):
    """A data set that is unknown, missing, damaged or cannot be had."""


@dataclass(frozen=True)
class Split:
    """Samples `x`, targets `y` and, where the data come from people, the natural client `group` of every sample."""

    x: Array
    y: Array
    group: Array | None = None

    def __post_init__(self) -> None:
        columns = [self.x, self.y] if self.group is None else [self.x, self.y, self.group]
        if len({len(column) for column in columns}) != 1:
            raise DataError(f"a split needs one target and one group for each sample, not {[len(c) for c in columns]}")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Array) -> Split:
        """The samples at these indices, in their order."""
        return Split(self.x[indices], self.y[indices], None if self.group is None else self.group[indices])


@dataclass(frozen=True)
class Info:
    """What a model must know of its data. `input_shape` leaves out the batch; `n_classes` is the alphabet's size for text."""

    name: str
    kind: Kind
    input_shape: tuple[int, ...]
    n_classes: int
    n_users: int = 0  # ratings only
    n_items: int = 0


@dataclass(frozen=True)
class Dataset:
    """A named data set in memory. Pictures stay uint8 here, a quarter of their float size: `prepare` each batch."""

    info: Info
    train: Split
    test: Split
    mean: tuple[float, ...] = ()  # per channel; empty when x already is what the model takes
    std: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def kind(self) -> Kind:
        return self.info.kind

    @property
    def n_classes(self) -> int:
        return self.info.n_classes

    def prepare(self, x: Array) -> Array:
        """A batch as the model takes it: standardised float32 pictures, int64 symbols and ids, float32 features as they are."""
        if self.mean:
            shape = (len(self.mean),) + (1,) * (x.ndim - 2)
            mean, std = (np.asarray(values, np.float32).reshape(shape) for values in (self.mean, self.std))
            return np.asarray((x.astype(np.float32) - mean) / std, np.float32)
        return x.astype(np.float32 if np.issubdtype(x.dtype, np.floating) else np.int64, copy=False)

    def head(self, n_train: int, n_test: int | None = None) -> Dataset:
        """The first samples only: for quick runs."""
        keep = np.arange(len(self.train))[:n_train], np.arange(len(self.test))[: n_train if n_test is None else n_test]
        return replace(self, train=self.train.take(keep[0]), test=self.test.take(keep[1]))
