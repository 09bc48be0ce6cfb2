"""Every error perbit raises on purpose.

PerbitError
├── SpecError          a codec spec that cannot be read or does not compose
├── BudgetError        a budget of bytes that no parameter meets (also a ValueError)
├── Stopped            a long job that was asked to end and can go on
├── EncodeError        values that cannot be coded (also a ValueError)
│   └── NonFiniteError NaN or infinity in the input
└── DecodeError        bytes that are not a valid frame (also a ValueError)
    ├── LimitError     a frame that takes more than the caller allows
    └── StateMismatch  a frame made against another memory than the receiver's
"""

from __future__ import annotations


class PerbitError(Exception):
    """The root of all errors raised by perbit."""


class SpecError(PerbitError, ValueError):
    """A codec spec that cannot be read or whose stages do not fit together."""


class BudgetError(PerbitError, ValueError):
    """No value of the free parameter gives a frame that fills the budget."""


class Stopped(PerbitError):  # noqa: N818  the name says what happened
    """A long job was asked to end; what it did is kept."""


class EncodeError(PerbitError, ValueError):
    """Values that cannot be encoded."""


class NonFiniteError(EncodeError):
    """The input holds NaN or infinity."""


class DecodeError(PerbitError, ValueError):
    """The bytes are not a valid frame."""


class LimitError(DecodeError):
    """Decoding a frame takes more values, memory or operations than the caller allows."""


class StateMismatch(DecodeError):  # noqa: N818  the name says what happened
    """A frame was made against another memory than the receiver holds; `sequence` is the frame's number, `expected` the receiver's."""

    def __init__(self, message: str, sequence: int | None = None, expected: int | None = None) -> None:
        super().__init__(message)
        self.sequence, self.expected = sequence, expected
