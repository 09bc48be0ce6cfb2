"""Picture sets: MNIST with its writers, Fashion-MNIST, CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perbit.sim.data import Array, DataError, Dataset, Info, Split
from perbit_papers.data import store

Root = Path | str | None


def mnist(root: Root = None) -> Dataset:
    """70 000 digits of 28×28. With mnist_writers.npz in the root, `group` is who wrote each."""
    arrays = store.read("mnist", root)
    writers: dict[str, Array] = {}
    if (store.data_root(root) / "mnist_writers.npz").is_file():
        writers = store.read("mnist_writers", root)
        if not all(np.array_equal(writers[f"{part}_label"], arrays[f"{part}_y"]) for part in ("train", "test")):
            raise DataError("mnist_writers.npz is not in the order of mnist.npz: their labels differ")
    train, test = (
        Split(_nchw(arrays[f"{p}_x"]), _labels(arrays[f"{p}_y"]), writers.get(f"{p}_writer")) for p in ("train", "test")
    )
    return Dataset(Info("mnist", "image", (1, 28, 28), 10), train, test, (33.32,), (78.57,))


def fashion_mnist(root: Root = None) -> Dataset:
    """70 000 pictures of clothes, 28×28."""
    return _pictures("fashion-mnist", root, (72.94,), (90.02,))


def cifar10(root: Root = None) -> Dataset:
    """60 000 colour pictures of 32×32."""
    return _pictures("cifar10", root, (125.31, 122.95, 113.87), (62.99, 62.09, 66.70))


def _pictures(name: str, root: Root, mean: tuple[float, ...], std: tuple[float, ...]) -> Dataset:
    arrays = store.read(name, root)
    train, test = (Split(_nchw(arrays[f"{part}_x"]), _labels(arrays[f"{part}_y"])) for part in ("train", "test"))
    return Dataset(Info(name, "image", train.x.shape[1:], 10), train, test, mean, std)


def _nchw(x: Array) -> Array:
    """Grey (n, height, width) or colour (n, height, width, 3) as (n, channels, height, width)."""
    return x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _labels(y: Array) -> Array:
    return y.astype(np.int64)
