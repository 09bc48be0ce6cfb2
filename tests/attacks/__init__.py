"""Hostile frames, one function for each kind of malformation.

To attack a new codec, write a function in one of these modules (or a new one, imported below) and decorate it:

    @attack
    def nice_codec_with_a_negative_radius():
        yield "radius -1", array("nice", (20,), section(b"..")), "the radius is negative"

It yields (name, frame, a part of the error that must come). The frames are sealed, so the decoders see the damage;
tests/test_attacks.py runs them under every back end and measures their memory, tests/fuzz.py starts from them.
"""

from __future__ import annotations

from attacks import bombs, curves, headers, messages, rd, sections, specs, symbols
from attacks.build import ATTACKS, Attack, attack, sealed


def all_attacks() -> list[Attack]:
    """Every attack frame, in the order of the modules."""
    return [
        Attack(f"{kind}: {name}", frame, reason) for kind, make in ATTACKS.items() for name, frame, reason in make()
    ]


__all__ = [
    "ATTACKS", "Attack", "all_attacks", "attack", "bombs", "curves", "headers", "messages", "rd", "sealed", "sections", "specs", "symbols",
]  # fmt: skip
