"""Inputs for the numeric kernels, and calls on every back end, which must give the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from perbit import kernels

SIZES = [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 65535, 65536, 65537, 200_000]
SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-39, 3e38, -3e38, 1.0, -1.0, 0.5, 2.0**-126], dtype=np.float32)

F32 = np.ndarray[Any, np.dtype[np.float32]]


def normal(n: int, seed: int = 1) -> F32:
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32)


def inputs(n: int) -> Iterator[F32]:
    """Gaussian values, aligned and not, many ties, and special values."""
    yield normal(n)
    yield normal(n + 1)[1:]
    yield np.round(normal(n) * 2).astype(np.float32)
    yield np.resize(SPECIAL, n)


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same_bits(p, q) for p, q in zip(a, b, strict=True))
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return type(a) is type(b) and bool(a == b)


def on_all(call: Callable[[], Any]) -> Any:
    """The result of call on every back end, which must be the same."""
    results = []
    for name in kernels.available():
        with kernels.using(name):
            results.append(call())
    for name, result in zip(kernels.available(), results, strict=True):
        assert same_bits(result, results[0]), name
    return results[0]


def fails_on_all(call: Callable[[], Any], message: str | None = None) -> None:
    for name in kernels.available():
        with kernels.using(name), pytest.raises(ValueError, match=message):
            call()


def filled(dtype: type[np.generic], n: int, call: Callable[[Any], None]) -> Any:
    """call writes into a new array of n entries and nowhere else."""
    guard = 64
    out = np.full(n + 2 * guard, 99, dtype=dtype)
    call(out[guard : guard + n])
    assert np.all(out[:guard] == 99)
    assert np.all(out[guard + n :] == 99)
    return out[guard : guard + n].copy()
