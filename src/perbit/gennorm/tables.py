"""Shipped tables: what both ends of a link must agree on to the last bit is stored, never recomputed.

`tables/gennorm.npz` is written once by tools/make_gennorm_tables.py. It holds, for every shape on the grid `BETAS`,
- `levels`  float32[65, 9, 255]: positive levels of the weighted Lloyd quantizer, m = 0..8, of 1, 2, … 8 bits in a row;
- `scales`  float64[65, 19, 2]: the optimal pre-scale of each low-bit float format, without and with its top exponent;
- `cdf`     uint32[65, 545]: P(|X| < g) at unit variance in units of 2^-31, on the magnitude grid of priors.py.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

STEPS_PER_OCTAVE = 16
BETAS = 0.25 * 2.0 ** (np.arange(65) / STEPS_PER_OCTAVE)  # 0.25 … 4, exact at 0.25, 0.5, 1, 2, 4
BETAS.flags.writeable = False
MAX_M = 8
MAX_BITS = 8
FORMATS = tuple((e, m) for e in range(1, 6) for m in range(4) if e + m <= 7)  # (exponent bits, mantissa bits)


def nearest_beta_index(beta: float) -> int:
    """The index of the shape on the grid nearest (in ratio) to beta; shapes outside [0.25, 4] take the end of the grid.

    >>> nearest_beta_index(1.0), nearest_beta_index(0.01), float(BETAS[nearest_beta_index(0.49)])
    (32, 0, 0.5)
    """
    if not beta > 0:
        raise ValueError(f"beta must be positive, got {beta}")
    return min(max(round(STEPS_PER_OCTAVE * math.log2(beta / 0.25)), 0), len(BETAS) - 1)


@cache
def load(name: str) -> NDArray[np.generic]:
    """The array `name` of the shipped file, read-only."""
    source = resources.files("perbit.gennorm").joinpath("tables", "gennorm.npz")
    with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        table: NDArray[np.generic] = archive[name]
    table.flags.writeable = False
    return table


def check_beta_index(beta_index: int) -> None:
    """Raise ValueError unless beta_index lies on the grid."""
    if not 0 <= beta_index < len(BETAS):
        raise ValueError(f"the shape index must lie in 0..{len(BETAS) - 1}, got {beta_index}")


def table_levels(beta_index: int, m: int, bits: int) -> NDArray[np.float32]:
    """The shipped 2^bits levels, ascending, symmetric, for unit-variance GenNorm(BETAS[beta_index]) and weight |x|^m.

    >>> table_levels(32, 2, 2)
    array([-3.6026583, -1.4716594,  1.4716594,  3.6026583], dtype=float32)
    """
    check_beta_index(beta_index)
    if not (0 <= m <= MAX_M and 1 <= bits <= MAX_BITS):
        raise ValueError(f"the table holds m = 0..{MAX_M} and 1..{MAX_BITS} bits, got m={m}, bits={bits}; use design()")
    n = 1 << (bits - 1)
    half = load("levels")[beta_index, m, n - 1 : 2 * n - 1].astype(np.float32, copy=False)
    return np.concatenate([-half[::-1], half])


def table_scale(beta_index: int, e: int, m: int, full: bool = False) -> float:
    """The shipped optimal pre-scale (in units of 1/alpha) of the format with e exponent and m mantissa bits.

    >>> round(table_scale(32, 2, 1), 3)
    0.652
    """
    check_beta_index(beta_index)
    if (e, m) not in FORMATS or (e, m, full) == (1, 0, False):
        raise ValueError(f"no shipped scale for {e} exponent and {m} mantissa bits, full={full}")
    return float(load("scales")[beta_index, FORMATS.index((e, m)), int(full)])
