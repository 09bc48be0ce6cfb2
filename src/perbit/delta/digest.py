"""A digest of a model: of the names, dtypes, shapes and bits of its tensors, whatever file they are in and in whatever order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from perbit.coding.arrays import native_bytes, stored


def digest(tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256, as text.

    >>> import numpy as np
    >>> digest({"a": np.zeros(2)}) == digest({"a": np.zeros(2, np.float32)})
    False
    """
    total = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name]
        head = f"{len(name)} {name} {array.dtype.name} {' '.join(map(str, array.shape))}\n"
        total.update(head.encode("utf-8", "surrogatepass"))
        total.update(native_bytes(stored(array)))
    return total.hexdigest()
