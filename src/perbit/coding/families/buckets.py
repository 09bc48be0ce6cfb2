"""Quantile buckets of SketchML: magnitudes cut into equal counts, each sign apart, and the groups the buckets are divided into."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perbit.errors import DecodeError
from perbit.kernels.api import F32

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class BucketLayout:
    """How many buckets and groups each sign has; both ends derive it from three numbers."""

    negative: int
    positive: int
    groups: int

    def span(self, bins: int) -> tuple[int, int]:
        """Groups of one sign and buckets in a group."""
        if bins == 0:
            return 0, 1
        wanted = max(1, round(self.groups * bins / (self.negative + self.positive)))
        width = -(-bins // wanted)
        return -(-bins // width), width

    @property
    def widths(self) -> I64:
        """Buckets in each group, the negative groups first."""
        (n, a), (p, b) = self.span(self.negative), self.span(self.positive)
        return np.repeat([a, b], [n, p])

    @property
    def firsts(self) -> I64:
        """The first bucket of each group."""
        (n, a), (p, b) = self.span(self.negative), self.span(self.positive)
        return np.concatenate([np.arange(n) * a, self.negative + np.arange(p) * b])

    def group_of(self, bucket: I64) -> I64:
        return np.searchsorted(self.firsts, bucket, side="right") - 1


def quantile_buckets(x: F32, bins: int) -> tuple[F32, I64, int]:
    """(mean of each bucket, bucket of each value, how many buckets are negative): equal counts of magnitudes, each sign apart.

    >>> quantile_buckets(np.array([-4, 1, 3, 2, 8], np.float32), 3)
    (array([-4. ,  1.5,  5.5], dtype=float32), array([0, 1, 2, 1, 2]), 1)
    """
    is_negative = x < 0
    n_negative = int(is_negative.sum())
    total = min(bins, x.size)
    negative = min(n_negative, max(1, round(total * n_negative / max(1, x.size)))) if n_negative else 0
    negative -= int(negative == total and n_negative < x.size and total > 1)
    positive = max(total - negative, int(n_negative < x.size))
    order = np.lexsort((np.abs(x), ~is_negative))  # negative values first, then by magnitude
    ranks = np.arange(x.size)
    sorted_buckets = np.concatenate(
        [
            ranks[:n_negative] * negative // max(1, n_negative),
            negative + ranks[: x.size - n_negative] * positive // max(1, x.size - n_negative),
        ]
    )
    counts = np.bincount(sorted_buckets, minlength=negative + positive)
    starts = np.cumsum(counts) - counts
    sums = np.add.reduceat(x[order].astype(np.float64), starts) if x.size else np.zeros(0)
    buckets = np.empty(x.size, np.int64)
    buckets[order] = sorted_buckets
    return (sums / np.maximum(counts, 1)).astype(np.float32), buckets, negative


def read_means(data: memoryview, layout: BucketLayout) -> F32:
    count = layout.negative + layout.positive
    if len(data) != 4 * count:
        raise DecodeError(f"{count} buckets need {4 * count} bytes, got {len(data)}")
    means = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(means).all():
        raise DecodeError("a bucket's mean is not finite")
    return means
