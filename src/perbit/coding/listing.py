"""All codecs at a glance."""

from __future__ import annotations

import inspect
import re

from perbit.coding import registry
from perbit.coding.codec import Codec, parameters
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


def arguments(cls: type[Codec]) -> dict[str, str]:
    """What each parameter of a codec means: the `Args` of its docstring, or of its base class, each in one line.

    >>> from perbit.coding.spec import codec
    >>> arguments(type(codec("lowrank")))
    {'rank': 'pairs of vectors.'}
    """
    said: dict[str, str] = {}
    described = (inspect.cleandoc(base.__doc__ or "").partition("\nArgs:\n")[2] for base in cls.__mro__)
    for line in next(filter(None, described), "").splitlines() if parameters(cls) else ():
        started = re.match(r"    (\w+): (.*)", line)
        if started:
            said[started[1]] = started[2]
        elif line.startswith("     ") and said:
            said[list(said)[-1]] += f" {line.strip()}"
    return said
