"""What the README shows is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_readme_session_is_true() -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    failed, tried = doctest.testfile(
        str(Path(__file__).parent.parent / "README.md"), module_relative=False, optionflags=flags
    )
    assert tried > 5
    assert failed == 0
