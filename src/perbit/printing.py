"""Text of others in terminals and logs: names come from files, messages and nodes, and must command nothing."""

from __future__ import annotations

import logging

LONGEST = 1000  # characters of a message in a log


def printable(text: str, longest: int | None = None) -> str:
    r"""Names come from files of others: what a terminal would obey is written out.

    Args:
        text: any.
        longest: leave out the middle of what is longer.

    >>> printable("fc1.weight"), printable("\x1b[2Jfc1"), printable("0123456789", 8)
    ('fc1.weight', '\\x1b[2Jfc1', '0123 ... 6789')
    """
    if longest is not None and len(text) > longest:
        text = f"{text[: longest // 2]} ... {text[-(longest // 2) :]}"
    return text if text.isprintable() else repr(text)[1:-1]


def logger(name: str) -> logging.Logger:
    """Python's logger of this name, whose messages are printable."""
    found = logging.getLogger(name)
    if _made_printable not in found.filters:
        found.addFilter(_made_printable)
    return found


def _made_printable(record: logging.LogRecord) -> bool:
    """The whole message: clients and tensors are in its arguments, and in the errors that they brought about."""
    record.msg, record.args = printable(record.getMessage(), LONGEST), ()
    if record.exc_info:
        record.exc_text = "\n".join(map(printable, logging.Formatter().formatException(record.exc_info).splitlines()))
    return True
