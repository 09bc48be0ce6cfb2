"""Which codecs two ends agreed on. A sender names the codecs of its frame; a receiver that agreed on some refuses all others before it decodes.

What must agree is the *form* of a codec: its stages and the codecs inside them. Parameters may differ, because plans choose some of them by looking
at values (the threshold of a whole model, the step of `rd`, the `?` of a budget); each frame's budget bounds what they cost (perbit.coding.cost).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perbit.coding.codec import Codec, parameters, stages_of
from perbit.coding.spec import CodecLike, codec
from perbit.errors import DecodeError


@dataclass(frozen=True)
class Agreed:
    """The forms of codecs that a receiver takes.

    >>> agreed = Agreed.of(["topk(0.01) | qsgd(15) | rans", "raw"])
    >>> sorted(agreed.forms)
    ['raw', 'topk(positions=golomb) | qsgd | rans']
    >>> agreed.check(codec("topk(0.5, positions=bloom)"))
    Traceback (most recent call last):
    perbit.errors.DecodeError: the frame is coded by topk(positions=bloom), agreed were raw; topk(positions=golomb) | qsgd | rans
    """

    forms: frozenset[str]

    @classmethod
    def of(cls, codecs: AgreedLike) -> Agreed:
        """One spec, several, or what was agreed already (`Plan.agreed`)."""
        if isinstance(codecs, Agreed):
            return codecs
        several = [codecs] if isinstance(codecs, str | Codec) else codecs
        return cls(frozenset(form(codec(one)) for one in several))

    def check(self, found: Codec, where: str = "the frame") -> None:
        """Refuse a codec of any other form."""
        if form(found) not in self.forms:
            agreed = "; ".join(sorted(self.forms)) or "none"
            raise DecodeError(f"{where} is coded by {form(found)}, agreed were {agreed}")


AgreedLike = Agreed | CodecLike | Iterable[CodecLike]


def form(codec: Codec) -> str:
    """A codec without its parameters, but with the codecs among them."""
    return " | ".join(map(_stage_form, stages_of(codec)))


def _stage_form(stage: Codec) -> str:
    inner = [(field.name, getattr(stage, field.name)) for field in parameters(type(stage))]
    shown = [f"{name}={form(value)}" for name, value in inner if isinstance(value, Codec)]
    return f"{stage.name}({', '.join(shown)})" if shown else stage.name
