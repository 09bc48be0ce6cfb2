"""All codecs at a glance."""

from __future__ import annotations

from perbit.coding import registry
from perbit.coding.codec import Codec
from perbit.coding.spec import signature


def codecs() -> dict[str, str]:
    """Every codec: how it is called, and one line on what it does.

    >>> codecs()["fp16"]
    'IEEE half precision, rounded to nearest; values beyond ±65504 saturate.'
    """
    return {signature(cls): about(cls) for cls in registry.classes().values()}


def about(cls: type[Codec]) -> str:
    """What a codec does: the first paragraph of its docstring, in one line."""
    paragraph = (cls.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split())
