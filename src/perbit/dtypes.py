"""Dtypes by name. bfloat16 and the float8 of numpy come from ml_dtypes, which is loaded when one of them is asked for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from perbit.errors import PerbitError

STORED = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}  # their bits, as whole numbers


class DtypeError(PerbitError, ValueError):
    """A dtype that needs a package which is not installed."""


@lru_cache(maxsize=64)
def named(name: str) -> np.dtype[Any]:
    """
    >>> named("int16"), named("bfloat16").itemsize
    (dtype('int16'), 2)
    """
    if name not in STORED:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise DtypeError(f'{name} needs the package ml_dtypes: pip install "perbit[files]"') from None
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def stored(name: str) -> np.dtype[Any]:
    """What numpy itself stores such values as; no package is needed."""
    return np.dtype(STORED.get(name, name))
