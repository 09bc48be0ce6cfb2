"""Data for the convex test bed: synthetic sets, LIBSVM text files, and sparse matrices in .npz; split evenly or by likeness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perbit.files import FileError
from perbit.sim.data import DataError
from perbit_papers.convex.problem import F64, Kind, Problem
from perbit_papers.data.libsvm import read_libsvm


def synthetic(
    kind: Kind = "least_squares",
    n_clients: int = 20,
    n_rows: int = 200,
    n_features: int = 20,
    noise: float = 0.4,
    heterogeneous: bool = False,
    seed: int = 0,
) -> Problem:
    """Gaussian features with a decaying spectrum; heterogeneous clients have each their own truth.

    >>> synthetic(n_clients=3, n_rows=5, n_features=2).x.shape
    (3, 5, 2)
    """
    rng = np.random.default_rng(seed)
    spectrum = 1 / np.sqrt(1 + np.arange(n_features))
    x = rng.normal(size=(n_clients, n_rows, n_features)) * spectrum
    truth = np.broadcast_to(rng.normal(size=n_features), (n_clients, n_features))
    if heterogeneous:
        truth = truth + rng.normal(size=(n_clients, n_features))
    score = np.matmul(x, truth[:, :, None])[:, :, 0] + noise * rng.normal(size=(n_clients, n_rows))
    return Problem(kind, x, score if kind == "least_squares" else np.where(score > 0, 1.0, -1.0))


def load(path: Path) -> tuple[F64, F64]:
    """Dense features and labels of a LIBSVM text file or of an .npz with CSR arrays (indptr, indices, data, y, shape)."""
    if not path.is_file():
        raise FileError(f"cannot read {path}: no such file")
    try:
        return _load_npz(path) if path.suffix == ".npz" else _load_libsvm(path)
    except (OSError, ValueError, KeyError, IndexError, DataError) as error:
        raise FileError(f"cannot read {path}: {error}") from error


def _load_npz(path: Path) -> tuple[F64, F64]:
    with np.load(path, allow_pickle=False) as archive:
        prefix = "train_" if "train_indptr" in archive.files else ""
        part = {name: archive[prefix + name] for name in ("indptr", "indices", "data", "y", "shape")}
    x = np.zeros(tuple(int(n) for n in part["shape"]))
    x[np.repeat(np.arange(len(x)), np.diff(part["indptr"])), part["indices"]] = part["data"]
    return x, part["y"].astype(np.float64)


def _load_libsvm(path: Path) -> tuple[F64, F64]:
    x, y = read_libsvm(path, np.float64)
    if not len(y):
        raise ValueError("it holds no rows")
    return x, y


def prepare(x: F64, y: F64, kind: Kind, n_clients: int, heterogeneous: bool = False) -> Problem:
    """Standardise, put a column of ones in front, make two classes ±1, and split: as the rows come, or like to like."""
    deviation = x.std(0)
    x = (x - x.mean(0)) / np.where(deviation > 0, deviation, 1)
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    if kind == "logistic":
        classes = np.unique(y)
        if len(classes) != 2:
            raise FileError(f"logistic regression needs two classes, the labels have {len(classes)} values")
        y = np.where(y == classes[1], 1.0, -1.0)
    order = _like_to_like(x, y) if heterogeneous else np.arange(len(x))
    n_rows = len(x) // n_clients
    if n_rows == 0:
        raise FileError(f"{len(x)} rows are too few for {n_clients} clients")
    chosen = order[: n_rows * n_clients]
    return Problem(kind, x[chosen].reshape(n_clients, n_rows, -1), y[chosen].reshape(n_clients, n_rows))


def _like_to_like(x: F64, y: F64) -> NDArray[np.int64]:
    """Rows by label, then along the direction in which they differ most."""
    _, vectors = np.linalg.eigh(x.T @ x)
    return np.lexsort((x @ vectors[:, -1], y))
