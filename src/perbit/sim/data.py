"""What a data set is: a train and a test split, and the facts a model needs to be built for it. `load` gets one by its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from perbit import plugins
from perbit.errors import PerbitError

if TYPE_CHECKING:
    from torch import Tensor

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


class Objective:
    """What training minimises and what a test reports; a data set may bring one of its own.

    Here outputs have a number for each class on the last axis; a sample has one target, or one for each symbol of a text.
    """

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, averaged over all targets."""
        from torch.nn import functional

        return functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1))

    def n_right(self, outputs: Tensor, y: Tensor) -> tuple[int, int]:
        """(right, all): targets predicted right. Test batches are multiples of 100 samples, for objectives that judge in blocks."""
        return int((outputs.argmax(dim=-1) == y).sum()), y.numel()


@dataclass(frozen=True)
class Dataset:
    """A named data set in memory. Pictures stay uint8 here, a quarter of their float size: `prepare` each batch."""

    info: Info
    train: Split
    test: Split
    mean: tuple[float, ...] = ()  # per channel; empty when x already is what the model takes
    std: tuple[float, ...] = ()
    objective: Objective = Objective()

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


def load(name: str, root: Path | str | None = None) -> Dataset:
    """The data set in memory: digits, or one that another package offers (perbit.plugins), from under `root`.

    A name with a slash is the path of a LIBSVM text file.

    >>> digits = load("digits")
    >>> digits.train.x.shape, digits.n_classes
    ((1438, 1, 8, 8), 10)
    """
    if name == "digits":
        return digits()
    is_file = "/" in name and Path(name).is_file()
    loader = plugins.find("data set", "libsvm" if is_file else name)
    if loader is None:
        raise DataError(plugins.unknown("data set", name, ["digits"]))
    try:
        data: Dataset = loader(name if is_file else root)
    except (KeyError, IndexError, ValueError) as error:  # arrays that are not there, or not of the right shape
        raise DataError(f"the file of {name} is damaged ({error}); get it again with `perbit data`") from error
    return data


def digits() -> Dataset:
    """1797 digits of 8×8, bundled with scikit-learn: every fifth is a test sample, so both parts see every writer."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("digits come with the package scikit-learn: pip install scikit-learn") from None
    bunch = load_digits()
    x, y = bunch.images[:, None].astype(np.uint8), bunch.target.astype(np.int64)
    is_test = np.arange(len(y)) % 5 == 4
    info = Info("digits", "image", (1, 8, 8), 10)
    return Dataset(info, Split(x[~is_test], y[~is_test]), Split(x[is_test], y[is_test]), (4.884,), (6.017,))
