"""Perbit's own codecs, one family a file; importing this package registers them all."""

from perbit.families import (  # noqa: F401
    bloom,
    choice,
    eden,
    entropy,
    formats,
    fp,
    gapcodes,
    general,
    mwl2,
    natural,
    nuqsgd,
    positions,
    qsgd,
    randk,
    sign,
    sparse,
    terngrad,
    uniform,
)
