"""All codecs at a glance."""

from __future__ import annotations

from perbit import registry
from perbit.spec import signature


def codecs() -> dict[str, str]:
    """Every codec: how it is called, and one line on what it does.

    >>> codecs()["fp16"]
    'IEEE half precision, rounded to nearest; values beyond ±65504 saturate.'
    """
    return {signature(cls): (cls.__doc__ or "").strip().splitlines()[0] for cls in registry.classes().values()}
