"""A user's own code by its import path "package.module:name", looked for in the current folder too."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perbit import extras
from perbit.errors import PerbitError


class OwnCodeError(PerbitError):
    """Code of the user's own that cannot be imported, or that failed."""


def is_import_path(text: str) -> bool:
    """
    >>> is_import_path("mine:load"), is_import_path("dirichlet(0.5)"), is_import_path("C:\\\\data.npz")
    (True, False, False)
    """
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text) is not None


def imported(what: str, path: str) -> Any:
    """What an import path leads to; `what` it is for stands in errors."""
    if not is_import_path(path):
        raise OwnCodeError(f'{what} must be written "module:name", e.g. "mine:{what}", not {path!r}')
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # wherever perbit was started from
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        said = extras.missing(error, f"{what} {path}") if isinstance(error, ImportError) else None
        if said is not None:
            raise OwnCodeError(said) from None
        raise OwnCodeError(f"{what} {path} cannot be imported: {error}") from error
    except Exception as error:  # whatever the user's module raises when it is read
        raise OwnCodeError(f"{what} {path} cannot be imported: {why(error, None)}") from error
    return found


def imported_function(what: str, path: str) -> Callable[..., Any]:
    """The same for a function; calls of it end in its result or in one sentence."""
    function = imported(what, path)
    if not callable(function):
        raise OwnCodeError(f"{what} {path} is a {type(function).__name__}, not a function")

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise OwnCodeError(f"{what} {path} failed: {why(error, function)}") from error

    return call


def why(error: Exception, function: Any) -> str:
    """The first line of what went wrong, and the last line of the user's own code that had a part in it."""
    reason = (str(error).strip().splitlines() or [""])[0]
    frames = traceback.extract_tb(error.__traceback__)
    try:
        own = [frame for frame in frames if function is None or frame.filename == inspect.getsourcefile(function)]
    except TypeError:  # not written in Python
        own = []
    own = [frame for frame in own if not frame.filename.startswith("<") and frame.filename != __file__]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {reason}{where}" if reason else f"{type(error).__name__}{where}"
