"""Data of the user's own: arrays in a .npz, .csv or .parquet file, or what a function returns. Every mistake is one sentence."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perbit.files import read_tensors
from perbit.sim.dataset import Array, DataError, Dataset, Info, Items, Kind, Split
from perbit.sim.imports import imported_function, is_import_path

NAMES = ("x", "y", "client", "x_test", "y_test")
MARKS = ("y", "client", "test")  # columns of a table that are no features
TEST_SHARE, TEST_SEED = 5, 0  # without a test part, every fifth sample of one fixed shuffling is one


def find(name: str) -> Dataset | None:
    """The data set of a file or function of the user's own; None if the name is neither."""
    if is_import_path(name):
        return from_returned(name, imported_function("data", name)())
    reader = _READERS.get(Path(name).suffix)
    if reader is None:
        return None
    if not Path(name).is_file():
        raise DataError(f"there is no file {name}; a path counts from the current folder, {Path.cwd()}")
    return from_arrays(name, reader(Path(name)))


def from_returned(name: str, value: Any) -> Dataset:
    """What a function gave: a `Dataset` of perbit.sim.data, a dict of arrays as in a .npz file, or a train and a test part."""
    if isinstance(value, Dataset):
        return value
    if isinstance(value, Mapping):
        return from_arrays(name, value)
    if not (isinstance(value, tuple | list) and len(value) == 2):
        said = "(train, test), each (x, y), (x, y, client) or a torch Dataset; or a dict with x, y and so on"
        raise DataError(f"data {name} must return {said}; it returned {_kind_of(value)}")
    train, test = (_part(name, which, part) for which, part in zip(("train", "test"), value, strict=True))
    return _dataset(name, train, test)


def from_arrays(name: str, arrays: Mapping[str, Any]) -> Dataset:
    """A data set from x, y and, if they are there, client, x_test and y_test."""
    unknown = [key for key in arrays if key not in NAMES]
    missing = [key for key in ("x", "y") if key not in arrays]
    if unknown or missing:
        wrong = f"{missing[0]} is missing" if missing else f"{unknown[0]!r} is none of them"
        raise DataError(f"data {name} must hold x and y, and may hold client, x_test and y_test; {wrong}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"data {name} must hold both x_test and y_test, or neither")
    train = _split(name, arrays["x"], arrays["y"], arrays.get("client"))
    if "x_test" in arrays:
        return _dataset(name, train, _split(name, arrays["x_test"], arrays["y_test"]))
    return _dataset(name, *_cut(name, train))


def _part(name: str, which: str, part: Any) -> Split:
    if isinstance(part, Split):
        return part
    if isinstance(part, tuple | list) and len(part) in (2, 3):
        return _split(name, *part)
    if hasattr(part, "__getitem__") and hasattr(part, "__len__"):
        return _items(name, which, part)
    raise DataError(
        f"data {name}: {which} must be (x, y), (x, y, client) or a torch Dataset with a length, not {_kind_of(part)}"
    )


def _items(name: str, which: str, dataset: Any) -> Split:
    """The samples of a torch Dataset. They are fetched once for their targets, and again whenever they are trained with."""
    if not len(dataset):
        raise DataError(f"data {name}: {which} is empty")
    targets = []
    for i in range(len(dataset)):
        item = dataset[i]
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise DataError(f"data {name}: sample {i} of {which} must be (x, y), not {_kind_of(item)}")
        targets.append(_array(item[1]))
    if len({target.shape for target in targets}) > 1:
        raise DataError(f"data {name}: the targets of {which} must all have one shape")
    x = Items(lambda i: _array(dataset[i][0]), np.arange(len(dataset)))
    return Split(x, np.stack(targets))


def _split(name: str, x: Any, y: Any, client: Any = None) -> Split:
    try:
        x, y, client = (None if column is None else _array(column) for column in (x, y, client))
    except (TypeError, ValueError) as error:
        raise DataError(f"data {name}: x, y and client must be arrays: {error}") from None
    if x.ndim < 1 or y.ndim < 1 or x.dtype.kind not in "biuf":
        raise DataError(f"data {name}: x must be an array of numbers with a row for each sample, not {_kind_of(x)}")
    lengths = {"x": len(x), "y": len(y), **({} if client is None else {"client": len(client)})}
    if len(set(lengths.values())) != 1:
        said = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(f"data {name}: every sample needs one target and one client, and the lengths are {said}")
    if not len(y):
        raise DataError(f"data {name} are empty")
    return Split(x.astype(np.float32) if x.dtype == bool else x, y, client)


def _cut(name: str, whole: Split) -> tuple[Split, Split]:
    """A train and a test part."""
    if len(whole) < TEST_SHARE:
        raise DataError(f"data {name} have {len(whole)} samples, too few to keep a fifth for the test")
    order = np.random.default_rng(TEST_SEED).permutation(len(whole))
    n_test = len(whole) // TEST_SHARE
    return whole.take(np.sort(order[n_test:])), whole.take(np.sort(order[:n_test]))


def _dataset(name: str, train: Split, test: Split) -> Dataset:
    if train.x.shape[1:] != test.x.shape[1:]:
        raise DataError(
            f"data {name}: samples have shape {train.x.shape[1:]} for training and {test.x.shape[1:]} in the test"
        )
    shape = train.x.shape[1:]
    are_symbols = train.x.dtype.kind in "iu" and train.x.dtype != np.uint8
    if are_symbols and train.y.dtype.kind in "iu" and train.y.shape == train.x.shape:
        columns = [train.x[np.arange(len(train))], train.y, test.x[np.arange(len(test))], test.y]
        return Dataset(Info(name, "text", shape, int(max(c.max() for c in columns)) + 1), train, test)
    train, test, n_classes = _with_classes(train, test)
    kind: Kind = "symbols" if are_symbols else _KINDS.get(len(shape), "series")
    mean, std = _standard(train.x)
    return Dataset(Info(name, kind if n_classes else "own", shape, n_classes), train, test, mean, std)


_KINDS: dict[int, Kind] = {0: "tabular", 1: "tabular", 3: "image"}


def _with_classes(train: Split, test: Split) -> tuple[Split, Split, int]:
    """Classes become 0, 1, … in the order of their names or numbers. Targets that are no classes stay, and there are 0 classes."""
    y = np.concatenate([train.y, test.y]) if train.y.shape[1:] == test.y.shape[1:] else train.y
    if y.ndim != 1 or y.dtype.kind == "f":
        return train, test, 0
    classes, numbers = np.unique(y, return_inverse=True)
    numbers = numbers.astype(np.int64)
    return (
        Split(train.x, numbers[: len(train)], train.group, train.numbers),
        Split(test.x, numbers[len(train) :], test.group, test.numbers),
        len(classes),
    )


def _standard(x: Array | Items) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """uint8 are brightnesses: over all of them their mean becomes 0 and their deviation 1. Other numbers stay as they are."""
    if isinstance(x, Items) or x.dtype != np.uint8:
        return (), ()
    return (float(x.mean()),), (float(x.std()) or 1.0,)


def _array(value: Any) -> Array:
    """An array of a value, be it a tensor, in a dtype that torch takes."""
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.dtype.kind == "O":
        raise ValueError("rows of different lengths, or values of different types")
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} and shape {value.shape}"
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{'nothing' if value is None else type(value).__name__}{length}"


# --- files -----------------------------------------------------------------------------------------------------------


def _from_npz(path: Path) -> Mapping[str, Any]:
    found = read_tensors(path)
    return found if isinstance(found, dict) else {}


def _from_csv(path: Path) -> Mapping[str, Any]:
    """A line of column names, then a line for each sample."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if len(lines) < 2:
        raise DataError(f"{path} must have a line of column names and a line for each sample")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(lines[0]):
            raise DataError(f"{path}: row {number} has {len(line)} cells, and there are {len(lines[0])} columns")
    return _from_columns(path, dict(zip(map(str.strip, lines[0]), zip(*lines[1:], strict=True), strict=True)))


def _from_parquet(path: Path) -> Mapping[str, Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(f"{path} needs the package pyarrow: pip install pyarrow") from None
    try:
        columns = parquet.read_table(path).to_pydict()
    except (OSError, ArrowException) as error:
        raise DataError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    return _from_columns(path, columns)


def _from_columns(path: Path, columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """x from all columns but y, client and test; rows whose `test` is not 0 are the test part."""
    if "y" not in columns:
        raise DataError(f"{path} must have a column y with the target; it has {', '.join(columns)}")
    features = [name for name in columns if name not in MARKS]
    if not features:
        raise DataError(f"{path} must have columns of numbers beside y")
    x = np.stack([_numbers(path, name, columns[name]) for name in features], axis=1).astype(np.float32)
    found: dict[str, Any] = {"x": x, "y": _classes_or_numbers(columns["y"])}
    if "client" in columns:
        found["client"] = np.asarray([str(value) for value in columns["client"]])
    if "test" not in columns:
        return found
    is_test = _numbers(path, "test", columns["test"]) != 0
    if is_test.all() or not is_test.any():
        raise DataError(f"{path}: the column test must mark some rows, not {'all' if is_test.all() else 'none'}")
    test = {f"{key}_test": found[key][is_test] for key in ("x", "y")}
    return {key: value[~is_test] for key, value in found.items()} | test


def _numbers(path: Path, name: str, column: Any) -> Array:
    try:
        return np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        for row, value in enumerate(column, 2):
            try:
                float(value)
            except (TypeError, ValueError):
                raise DataError(f"{path}: column {name} must hold numbers, and row {row} has {value!r}") from None
        raise


def _classes_or_numbers(column: Any) -> Array:
    """Whole numbers and names are classes, other numbers are numbers."""
    values = np.asarray(column)
    for kind in (np.int64, np.float32) if values.dtype.kind not in "biuf" else ():
        try:
            return values.astype(kind)
        except (TypeError, ValueError):
            continue
    return values if values.dtype.kind != "O" else values.astype(str)


_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npz": _from_npz,
    ".csv": _from_csv,
    ".parquet": _from_parquet,
}
SUFFIXES = tuple(_READERS)
