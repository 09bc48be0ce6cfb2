"""Perbit's own codecs, one family a file; importing this package registers them all."""

from perbit.families import (
    entropy,
    fitdexp,
    fitpoly,
    formats,
    general,
    positions,
    qsgd,
    sketches,
    sparse,
    threelc,
    uniform,
)

__all__ = [
    "entropy",
    "fitdexp",
    "fitpoly",
    "formats",
    "general",
    "positions",
    "qsgd",
    "sketches",
    "sparse",
    "threelc",
    "uniform",
]
