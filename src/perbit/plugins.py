"""What other packages add by name, through entry points: commands, data sets, models, comparisons.

perbit's own names are never looked up here, so that nobody waits for the search who does not need it. Only what is asked for is loaded: a broken
plug-in breaks no other name.

| kind | group of entry points | what it leads to |
| --- | --- | --- |
| command | perbit.commands | a module with `add_options(parser)` and `run(options)`; its docstring is the description |
| data set | perbit.data | a function from the data root (or None) to a `Dataset` |
| model | perbit.models | a torch.nn.Module class; if it has a parameter `info`, it is given the data set's |
| comparison | perbit.comparisons | a package that holds NAME.toml |
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from perbit.errors import PerbitError

_LAST = {"command": "commands", "data set": "data", "model": "models", "comparison": "comparisons"}
GROUPS = {kind: f"perbit.{last}" for kind, last in _LAST.items()}
PAPERS = "perbit-papers"  # has most of them


def offered(kind: str) -> dict[str, str]:
    """Every name of this kind, and the distribution it comes from."""
    return {entry.name: entry.dist.name if entry.dist else "" for entry in entry_points(group=GROUPS[kind])}


def find(kind: str, name: str) -> Any:
    """What is offered under this name, loaded; None if nobody offers it."""
    for entry in entry_points(group=GROUPS[kind], name=name):
        try:
            return entry.load()
        except Exception as error:  # whatever somebody else's package raises
            raise PerbitError(f"the {kind} {name} ({entry.value}) cannot be loaded: {error}") from error
    return None


def unknown(kind: str, name: str, own: Iterable[str]) -> str:
    """A sentence for a name that is neither perbit's own nor offered."""
    others = offered(kind)
    known = [*own, *sorted(others)]
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"there is no {kind} {name}; did you mean {close[0]}?"
    if PAPERS not in others.values():
        return f"there is no {kind} {name} here; more {kind}s come with {PAPERS}: pip install {PAPERS}"
    return f"there is no {kind} {name}; known: {', '.join(known)}"
