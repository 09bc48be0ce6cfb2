"""Perbit's own codecs, one family a file; importing this package registers them all."""

from perbit.families import entropy, formats, fp, general, positions, qsgd, sparse, uniform

__all__ = ["entropy", "formats", "fp", "general", "positions", "qsgd", "sparse", "uniform"]
