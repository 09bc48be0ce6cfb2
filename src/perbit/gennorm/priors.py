"""Symbol frequencies from the GenNorm model, the same integers on every machine.

The shipped table holds F(g) = P(|X| < g) of the unit-variance distribution in units of 2^-31 at the magnitudes g whose
float32 bits end in 19 zeros: 16 to the octave, from 2^-24 to 2^10. The bits of a float32 threshold thus give its place
in the table and, as the remaining 19 bits, its place between two entries. All arithmetic is on integers: no libm call,
no rounding mode.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perbit.gennorm.tables import check_beta_index, load

I64 = NDArray[np.int64]

FRACTION_BITS = 19
FIRST = (127 - 24) << (23 - FRACTION_BITS)  # the grid's first entry, as float32 bits >> 19
LAST = (127 + 10) << (23 - FRACTION_BITS)
ONE = 1 << 31


def magnitude_grid() -> NDArray[np.float32]:
    """The magnitudes at which the shipped table samples the distribution.

    >>> g = magnitude_grid()
    >>> len(g), float(g[0]) == 2**-24, float(g[16] / g[0]), float(g[-1])
    (545, True, 2.0, 1024.0)
    """
    return (np.arange(FIRST, LAST + 1, dtype=np.uint32) << np.uint32(FRACTION_BITS)).view(np.float32)


def cdf(beta_index: int, x: NDArray[np.float32]) -> I64:
    """P(X < x) in units of 2^-32 for float32 x in units of the standard deviation: integer linear interpolation.

    >>> cdf(32, np.float32([-np.inf, 0, np.inf])).tolist()
    [0, 2147483648, 4294967296]
    """
    check_beta_index(beta_index)
    table = np.concatenate([load("cdf")[beta_index].astype(np.int64), [ONE]])  # beyond the grid there is nothing left
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.int64)
    magnitude = bits & 0x7FFFFFFF
    place = np.clip(magnitude, FIRST << FRACTION_BITS, LAST << FRACTION_BITS) - (FIRST << FRACTION_BITS)
    i, fraction = place >> FRACTION_BITS, place & ((1 << FRACTION_BITS) - 1)
    inside = table[i] + (((table[i + 1] - table[i]) * fraction) >> FRACTION_BITS)
    inside = np.where(magnitude < FIRST << FRACTION_BITS, 0, np.where(magnitude >= LAST << FRACTION_BITS, ONE, inside))
    return ONE + np.where(bits >> 31 == 1, -inside, inside)


def interval_masses(beta_index: int, thresholds: NDArray[np.float32]) -> I64:
    """The probabilities of the intervals between ascending thresholds (and beyond), in units of 2^-32.

    >>> interval_masses(48, np.float32([-1, 1]))[1] / 2**32          # the normal distribution within one sigma
    np.float64(0.682...)
    """
    t = np.asarray(thresholds, np.float32)
    if np.isnan(t).any() or (t[1:] < t[:-1]).any():
        raise ValueError("thresholds must be ascending numbers")
    return np.diff(cdf(beta_index, t), prepend=0, append=2 * ONE)


def normalise(masses: ArrayLike, bits: int = 14) -> NDArray[np.uint32]:
    """Frequencies >= 1 that sum to 2^bits, in proportion to non-negative integer masses (sum below 2^46).

    Masses that deserve less than one are given one, the others share what is left; largest remainders are rounded up,
    of equal ones the first.

    >>> normalise([10, 0, 30], bits=8)
    array([ 64,   1, 191], dtype=uint32)
    """
    mass: I64 = np.asarray(masses, np.int64)
    total = 1 << bits
    if not (0 < mass.size <= total and bits <= 16 and (mass >= 0).all() and 0 < int(mass.sum()) < 1 << 46):
        raise ValueError(f"cannot share {total} among {mass.size} masses that sum to {int(mass.sum())}")
    free = np.ones(mass.size, np.bool_)
    while True:
        left, shared = total - int((~free).sum()), int(mass[free].sum())
        small = free & (mass * left < shared)
        if not small.any():
            break
        free &= ~small
    frequency = np.ones(mass.size, np.int64)
    share = mass[free] * left
    frequency[free] = share // shared
    missing = total - int(frequency.sum())
    order = np.flatnonzero(free)[np.argsort(-(share % shared), kind="stable")]
    frequency[order[:missing]] += 1
    return frequency.astype(np.uint32)
