"""Data sets by name: `load("digits")` needs nothing; the others lie under the data root, and `perbit data NAME` gets them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from perbit.sim.data.dataset import DataError, Dataset, Info, Kind, Split
from perbit.sim.data.images import cifar10, digits, fashion_mnist, mnist
from perbit.sim.data.libsvm import SETS, sparse_set, text_set
from perbit.sim.data.ratings import movielens
from perbit.sim.data.sensors import hapt
from perbit.sim.data.store import data_root
from perbit.sim.data.text import shakespeare, shakespeare_roles, shakespeare_words

__all__ = ["DATASETS", "DataError", "Dataset", "Info", "Kind", "Split", "data_root", "load"]

DATASETS: dict[str, Callable[[Path | str | None], Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "shakespeare": shakespeare,
    "shakespeare-roles": shakespeare_roles,
    "shakespeare-words": shakespeare_words,
    "hapt": hapt,
    "movielens": movielens,
    **{name: partial(sparse_set, name) for name in SETS},
}


def load(name: str, root: Path | str | None = None) -> Dataset:
    """The data set in memory, from `root`, $PERBIT_DATA or ~/.cache/perbit. A name with a slash is the path of a LIBSVM text file.

    >>> digits = load("digits")
    >>> digits.train.x.shape, digits.n_classes
    ((1438, 1, 8, 8), 10)
    """
    if "/" in name and Path(name).is_file():
        return text_set(Path(name))
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(DATASETS)}"
        raise DataError(f"there is no data set {name}; {hint}")
    try:
        return DATASETS[name](root)
    except (KeyError, IndexError, ValueError) as error:  # arrays that are not there, or not of the right shape
        raise DataError(f"the file of {name} is damaged ({error}); get it again with `perbit data`") from error
