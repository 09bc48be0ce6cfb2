"""What theory says of the Bloom filters that code positions."""

from __future__ import annotations

from perbit.coding.families.bloom import WORD, Bloom, blocked_fpr


def expected_fpr(codec: Bloom, count: int) -> float:
    """The false-positive rate of a filter for `count` positions, by formula.

    >>> round(expected_fpr(Bloom(fpr=0.001), 10_000), 6), round(expected_fpr(Bloom(fpr=0.6), 10_000), 2)
    (0.001, 0.61)
    """
    n_bits = 8 * codec.filter_bytes(count)
    if codec.blocked:
        return blocked_fpr(count, n_bits // (codec.hashes * WORD), codec.hashes)
    return float((1 - (1 - 1 / n_bits) ** (codec.hashes * count)) ** codec.hashes)
