"""Data sets by name: perbit's own, a plug-in's, or the user's own file or function."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perbit import plugins
from perbit.sim import owndata
from perbit.sim.dataset import Array, DataError, Dataset, Info, Items, Kind, Objective, Split

__all__ = ["Array", "DataError", "Dataset", "Info", "Items", "Kind", "Objective", "Split", "digits", "load"]


def load(name: str, root: Path | str | None = None) -> Dataset:
    """The data set in memory: digits, or one that another package offers (perbit.plugins), from under `root`.

    A path, or "module:function", means data of the user's own (docs/own-data.md).

    >>> digits = load("digits")
    >>> digits.train.x.shape, digits.n_classes
    ((1438, 1, 8, 8), 10)
    """
    if name == "digits":
        return digits()
    own = owndata.find(name)
    if own is not None:
        return own
    is_file = ("/" in name or "." in name) and Path(name).is_file()
    loader = plugins.find("data set", "libsvm" if is_file else name)
    if loader is None and is_file:
        known = ", ".join(owndata.SUFFIXES)
        raise DataError(
            f"cannot tell what {name} holds: its name must end in {known}; LIBSVM text needs pip install {plugins.PAPERS}"
        )
    if loader is None:
        raise DataError(plugins.unknown("data set", name, ["digits"]))
    try:
        data: Dataset = loader(name if is_file else root)
    except UnicodeDecodeError:
        raise DataError(f"{name} is no text; files of your own end in {', '.join(owndata.SUFFIXES)}") from None
    except (KeyError, IndexError, ValueError) as error:  # arrays that are not there, or not of the right shape
        raise DataError(f"the file of {name} is damaged ({error}); get it again with `perbit data`") from error
    return data


def digits() -> Dataset:
    """1797 digits of 8×8, bundled with scikit-learn: every fifth is a test sample, so both parts see every writer."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError('digits come with the package scikit-learn: pip install "perbit[sim]"') from None
    bunch = load_digits()
    x, y = bunch.images[:, None].astype(np.uint8), bunch.target.astype(np.int64)
    is_test = np.arange(len(y)) % 5 == 4
    info = Info("digits", "image", (1, 8, 8), 10)
    return Dataset(info, Split(x[~is_test], y[~is_test]), Split(x[is_test], y[is_test]), (4.884,), (6.017,))
