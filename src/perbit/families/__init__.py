"""Perbit's own codecs, one family a file; importing this package registers them all."""

from perbit.families import (
    eden,
    entropy,
    formats,
    fp,
    general,
    mwl2,
    natural,
    nuqsgd,
    positions,
    qsgd,
    sign,
    sparse,
    terngrad,
    uniform,
)

__all__ = [
    "eden",
    "entropy",
    "formats",
    "fp",
    "general",
    "mwl2",
    "natural",
    "nuqsgd",
    "positions",
    "qsgd",
    "sign",
    "sparse",
    "terngrad",
    "uniform",
]
