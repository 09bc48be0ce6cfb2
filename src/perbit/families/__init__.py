"""Perbit's own codecs, one family a file; importing this package registers them all."""

from perbit.families import bloom, choice, entropy, formats, gapcodes, general, positions, qsgd, randk, sparse, uniform

__all__ = [
    "bloom",
    "choice",
    "entropy",
    "formats",
    "gapcodes",
    "general",
    "positions",
    "qsgd",
    "randk",
    "sparse",
    "uniform",
]
