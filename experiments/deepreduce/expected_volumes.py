"""Sizes of the combined methods by formula, in bytes, for positions at random; tests and reports compare real frames with them.

Where they come from: derived here from the methods' definitions. The papers of SketchML, SKCompress and 3LC were not at hand, so their own printed
formulas were not checked; the shape of SketchML's (keys, buckets, cells) follows its paper as it is commonly cited.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def sketchml_bytes(n: int, kept: int, bins: int = 256, groups: int = 8, rows: int = 2, columns: float = 0.3) -> float:
    """d·(⌈log₂₅₆(r·D/d)⌉ + 1/4) for the keys, 4·q for the float32 means of buckets, s·t·⌈log₂(q/r)⌉/8 for the cells."""
    keys = kept * (math.ceil(math.log(groups * n / kept, 256)) + 0.25)
    cells = rows * columns * kept * math.ceil(math.log2(bins / groups)) / 8
    return keys + 4 * bins + cells


def skcompress_bytes(n: int, kept: int, bins: int = 256, groups: int = 8, rows: int = 2, columns: float = 0.3) -> float:
    """d·(H(length of a gap) + its further bits) for the keys, 4·q for the buckets, s·t·H(cell) for the cells, H the entropy.

    Gaps are geometric with mean r·D/d. A cell is the smallest of Poisson(1/columns) buckets that are uniform over a group's q/r.
    """
    ends = np.concatenate([[1.0], 2.0 ** np.arange(1, 33)])
    beyond = (1 - kept / (groups * n)) ** (ends - 1)  # P(gap ≥ end)
    lengths = beyond[:-1] - beyond[1:]
    key_bits = entropy(lengths) + float(lengths @ np.arange(32))
    width = bins / groups
    above = np.exp(-np.arange(width + 1) / (columns * width))  # P(cell ≥ bucket)
    cells = above[:-1] - above[1:]
    cells[0] += above[-1]  # empty cells
    return kept * key_bits / 8 + 4 * bins + rows * columns * kept * entropy(cells) / 8


def threelc_bytes(n: int, zeros: float) -> float:
    """n/5 bytes of which a share z = zeros⁵ is all zero; runs of those shrink to one byte for every 14.

    >>> round(threelc_bytes(70_000, 1.0))
    1000
    """
    z = zeros**5
    per_byte = 1 / 14 if z == 1 else (1 - z) * (1 + z / (1 - z**14))
    return n / 5 * per_byte


def entropy(p: F64) -> float:
    """Bits a symbol."""
    p = p[p > 0]
    return float(-(p @ np.log2(p)))
