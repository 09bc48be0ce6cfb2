"""Convex test beds: LIBSVM's sets as .npz of sparse rows, or as the ordinary text files `a9a` and `a9a.t`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from perbit.sim.data import Array, DataError, Dataset, Info, Split
from perbit_papers.data import store

Rows = tuple[Array, Array]  # dense x, raw labels


def sparse_set(name: str, root: Path | str | None = None) -> Dataset:
    """Dense float32 rows with labels 0, 1, …; without a test part every fifth sample is one."""
    base = store.data_root(root)
    if (base / f"{name}.npz").is_file():
        parts = _from_npz(store.read(name, base))
    elif (base / name).is_file():
        return text_set(base / name)
    else:
        raise store.missing(name, base / f"{name}.npz")
    return _dataset(name, parts)


a9a, w8a, phishing, mushrooms = (partial(sparse_set, name) for name in ("a9a", "w8a", "phishing", "mushrooms"))


def text_set(file: Path | str) -> Dataset:
    """Any set of yours in LIBSVM's text format; a neighbour file with .t appended is its test part."""
    path = Path(file)
    return _dataset(
        path.name, [read_libsvm(part) for part in (path, path.with_name(f"{path.name}.t")) if part.is_file()]
    )


def read_libsvm(path: Path, dtype: DTypeLike = np.float32) -> Rows:
    """A LIBSVM text file: `label index:value …` per line, indices from 1."""
    labels: list[float] = []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            fields = line.split("#")[0].split()
            if not fields:
                continue
            try:
                pairs = [(int(i), float(v)) for i, v in (field.split(":") for field in fields[1:])]
                if any(index < 1 for index, _ in pairs):
                    raise ValueError
                label = float(fields[0])
            except ValueError:
                raise DataError(f"line {number} of {path} is not `label index:value …` with indices from 1") from None
            rows += [len(labels)] * len(pairs)
            columns += [index - 1 for index, _ in pairs]
            values += [value for _, value in pairs]
            labels.append(label)
    x = np.zeros((len(labels), max(columns, default=-1) + 1), dtype)
    x[rows, columns] = values
    return x, np.array(labels)


def _from_npz(arrays: dict[str, Array]) -> list[Rows]:
    return [_dense(arrays, part) for part in ("train_", "test_") if f"{part}indptr" in arrays]


def _dense(arrays: dict[str, Array], part: str) -> Rows:
    indptr, indices, data, y, shape = (arrays[part + key] for key in ("indptr", "indices", "data", "y", "shape"))
    x = np.zeros(tuple(shape), np.float32)
    x[np.repeat(np.arange(len(y)), np.diff(indptr)), indices] = data
    return x, y


def _dataset(name: str, parts: list[Rows]) -> Dataset:
    classes = np.unique(np.concatenate([y for _, y in parts]))
    n_features = max(x.shape[1] for x, _ in parts)  # a text file ends at the last feature it mentions
    splits = [
        Split(np.pad(x, ((0, 0), (0, n_features - x.shape[1]))), np.searchsorted(classes, y).astype(np.int64))
        for x, y in parts
    ]
    if len(splits) == 1:
        is_test = np.arange(len(splits[0])) % 5 == 4
        splits = [splits[0].take(np.flatnonzero(part)) for part in (~is_test, is_test)]
    return Dataset(Info(name, "tabular", (n_features,), len(classes)), splits[0], splits[1])
