"""What a data set is: a train and a test split, and the facts a model needs to be built for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from perbit.errors import PerbitError

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
Kind = Literal["image", "text", "series", "ratings", "tabular", "symbols", "own"]
WHOLE_NUMBERS = ("text", "ratings", "symbols")


class DataError(PerbitError):
    """A data set that is unknown, missing, damaged or cannot be had."""


class Items:
    """Samples that are fetched one by one when they are asked for, such as those of a torch Dataset; used like an array of them.

    Args:
        fetch: gives sample i.
        order: which samples, in which order.
    """

    def __init__(self, fetch: Callable[[int], Array], order: Array) -> None:
        self.fetch, self.order = fetch, order
        first = fetch(int(order[0]))
        self.shape, self.dtype = (len(order), *first.shape), first.dtype

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, chosen: Array) -> Array:
        samples = [self.fetch(int(i)) for i in self.order[chosen]]
        if odd := next((sample.shape for sample in samples if sample.shape != self.shape[1:]), None):
            raise DataError(f"all samples must have one shape, and there are {self.shape[1:]} and {odd}")
        return np.stack(samples)

    def take(self, indices: Array) -> Items:
        """The samples at these indices, still to be fetched."""
        return Items(self.fetch, self.order[indices])


def joined(first: Array | Items, second: Array | Items) -> Array | Items:
    """The samples of both, one after the other."""
    if not isinstance(first, Items) and not isinstance(second, Items):
        return np.concatenate([first, second])

    def fetch(i: int) -> Array:
        source, at = (first, i) if i < len(first) else (second, i - len(first))
        sample: Array = source[np.array([at])][0]
        return sample

    return Items(fetch, np.arange(len(first) + len(second)))


@dataclass(frozen=True)
class Split:
    """Samples `x`, targets `y` and, where the data come from people, the natural client `group` of every sample.

    `numbers`: which samples of the whole these are, where a part was drawn from it.
    """

    x: Array | Items
    y: Array
    group: Array | None = None
    numbers: Array | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.x), len(self.y)] + ([] if self.group is None else [len(self.group)])
        if len(set(lengths)) != 1:
            raise DataError(f"a split needs one target and one group for each sample, not {lengths}")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Array) -> Split:
        """The samples at these indices, in their order."""
        x = self.x.take(indices) if isinstance(self.x, Items) else self.x[indices]
        group = None if self.group is None else self.group[indices]
        return Split(x, self.y[indices], group, indices if self.numbers is None else self.numbers[indices])

    def number(self, index: int) -> int:
        """The number of a sample in the data it was drawn from."""
        return int(index if self.numbers is None else self.numbers[index])


@dataclass(frozen=True)
class Info:
    """What a model must know of its data. `input_shape` leaves out the batch; `n_classes` is the alphabet's size for text."""

    name: str
    kind: Kind
    input_shape: tuple[int, ...]
    n_classes: int
    n_users: int = 0  # ratings only
    n_items: int = 0

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """What a model gives for one sample; None: whatever the user's own loss takes."""
        shapes: dict[str, tuple[int, ...] | None] = {"own": None, "ratings": ()}
        shapes["text"] = (*self.input_shape, self.n_classes)
        return shapes.get(self.kind, (self.n_classes,))


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

    def score(self, judged: Iterable[tuple[Tensor, Tensor]]) -> float:
        """What a test reports, larger is better: the share of right targets over all batches of outputs and targets."""
        counts = [self.n_right(outputs, y) for outputs, y in judged]
        return sum(right for right, _ in counts) / sum(n for _, n in counts)


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

    def redrawn(self, test_share: float, seed: int) -> Dataset:
        """Train and test part drawn anew from all samples.

        >>> digits = Dataset(Info("x", "tabular", (), 2), *(Split(np.arange(5.0), np.zeros(5, int)) for _ in range(2)))
        >>> drawn = digits.redrawn(0.3, seed=0)
        >>> len(drawn.train), len(drawn.test), sorted(map(float, joined(drawn.train.x, drawn.test.x)))[:4]
        (7, 3, [0.0, 0.0, 1.0, 1.0])
        """
        train, test = self.train, self.test
        if (train.group is None) != (test.group is None):
            raise DataError(f"the test part of {self.info.name} has no clients, so test_share cannot draw another one")
        group = None if train.group is None or test.group is None else np.concatenate([train.group, test.group])
        whole = Split(joined(train.x, test.x), np.concatenate([train.y, test.y]), group)
        n_test = min(max(1, round(test_share * len(whole))), len(whole) - 1)
        order = np.random.default_rng(seed).permutation(len(whole))
        return replace(self, train=whole.take(np.sort(order[n_test:])), test=whole.take(np.sort(order[:n_test])))

    def head(self, n_train: int, n_test: int | None = None) -> Dataset:
        """The first samples only: for quick runs."""
        keep = np.arange(len(self.train))[:n_train], np.arange(len(self.test))[: n_train if n_test is None else n_test]
        return replace(self, train=self.train.take(keep[0]), test=self.test.take(keep[1]))
