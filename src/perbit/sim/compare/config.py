"""Comparisons as TOML files: read, checked, and every mistake named by file, line and key."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from perbit import plugins
from perbit.errors import PerbitError
from perbit.sim.compare.links import LINKS, Link
from perbit.sim.federated.settings import Method, SettingsError, Task

T = TypeVar("T")
OWN = ("demo",)
_TOP = ("title", "seeds", "task", "methods", "links")
# Other keys of a method are the preset's parameters.
_METHOD_KEYS = [field.name for field in fields(Method) if field.name != "options"]
_KINDS = ((int, "a whole number"), (float, "a number"), (str, "a text in quotes"), (bool, "true or false"))


class ConfigError(PerbitError):
    """A comparison that cannot be read."""


MAX_SEED = 1 << 63  # torch takes no more


@dataclass(frozen=True)
class Comparison:
    """What to compare: every method with every seed, on one task."""

    title: str
    task: Task
    methods: tuple[Method, ...]
    seeds: tuple[int, ...] = (0,)
    links: tuple[Link, ...] = LINKS


def load(name: str) -> Comparison:
    """A comparison by name, perbit's own or a plug-in's, or a TOML file by path.

    >>> load("demo").task.data
    'digits'
    """
    path = Path(name)
    package = "perbit.sim.compare" if name in OWN else None if path.suffix else plugins.find("comparison", name)
    if package is None and not path.suffix and not path.exists():
        raise ConfigError(f"{plugins.unknown('comparison', name, OWN)} (a file of yours ends in .toml)")
    source = path if package is None else resources.files(package).joinpath(f"{name}.toml")
    try:
        return parse(source.read_text("utf-8"), str(path) if package is None else f"{name}.toml")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text") from None


def parse(text: str, name: str = "the comparison") -> Comparison:
    """A comparison from the text of a TOML file; `name` appears in errors."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(text, name, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{name}: its values are nested too deeply") from None
    except ValueError:  # of a number with thousands of digits, which tomllib passes on
        raise ConfigError(f"{name}: a number in it has too many digits") from None
    return _Reader(text, name).comparison(content)


class _Reader:
    """Turns tables into dataclasses; knows where in the text each key stands."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name

    def comparison(self, content: dict[str, Any]) -> Comparison:
        for key in content:
            self.expect(key in _TOP, ("", 0), key, f"is not known{_nearest(key, _TOP)}")
        methods = content.get("methods", [])
        self.expect(
            _are_tables(methods) and bool(methods), ("", 0), "methods", "must be one or more [[methods]] tables"
        )
        self.expect(isinstance(content.get("task", {}), dict), ("", 0), "task", "must be a [task] table")
        seeds = content.get("seeds", [0])
        good = isinstance(seeds, list) and bool(seeds) and all(type(s) is int and 0 <= s < MAX_SEED for s in seeds)
        self.expect(good, ("", 0), "seeds", "must be a list of whole numbers below 2^63, e.g. [0, 1, 2]")
        self.expect(
            len(set(seeds)) == len(seeds), ("", 0), "seeds", "must be different: the same seed gives the same run"
        )
        self.expect(isinstance(content.get("title", ""), str), ("", 0), "title", "must be a text")
        made = tuple(self.method(table, index) for index, table in enumerate(methods))
        for index, method in enumerate(made):
            is_new = method.name not in [other.name for other in made[:index]]
            self.expect(is_new, ("methods", index), "name", f"{method.name!r} is used twice")
        links = content.get("links", [])
        self.expect(_are_tables(links), ("", 0), "links", "must be [[links]] tables")
        chosen = tuple(self.table(Link, table, ("links", index)) for index, table in enumerate(links))
        task = self.table(Task, content.get("task", {}), ("task", 0))
        for index, link in enumerate(chosen):
            with_list = [key for key in ("up", "down") if isinstance(getattr(link, key), tuple)]
            for key in with_list:
                right = len(getattr(link, key)) == task.clients
                self.expect(
                    right, ("links", index), key, f"must be a number or a list of {task.clients}, one for each client"
                )
        return Comparison(content.get("title", self.name), task, made, tuple(seeds), chosen or LINKS)

    def method(self, table: dict[str, Any], index: int) -> Method:
        known = {key: table[key] for key in _METHOD_KEYS if key in table}
        options = {key: value for key, value in table.items() if key not in _METHOD_KEYS}
        return self.table(Method, {**known, "options": options}, ("methods", index))

    def table(self, cls: Callable[..., T], values: Mapping[str, Any], where: tuple[str, int]) -> T:
        """A dataclass from a table: known keys of the right types."""
        known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
        types = get_type_hints(cls)
        made = {}
        for key, value in values.items():
            self.expect(key in known, where, key, f"is not known{_nearest(key, known)}")
            made[key] = self.typed(types[key], value, where, key)
        for key, field in known.items():
            is_optional = field.default is not MISSING or field.default_factory is not MISSING
            self.expect(key in made or is_optional, where, key, "is missing")
        try:
            return cls(**made)
        except SettingsError as error:
            raise ConfigError(f"{self.at(where, error.key)}: {error}") from None

    def typed(self, kind: Any, value: Any, where: tuple[str, int], key: str) -> Any:
        are_numbers = isinstance(value, list) and value and all(type(v) in (int, float) for v in value)
        if are_numbers and kind not in (int, float, str):
            return tuple(map(float, value))
        if type(value) is int and kind not in (int, str, bool):
            return float(value)
        for plain, said in _KINDS:
            if kind is plain:
                self.expect(type(value) is plain, where, key, f"must be {said}, not {value!r}")
        return value

    def expect(self, holds: bool, where: tuple[str, int], key: str, said: str) -> None:
        if not holds:
            raise ConfigError(f"{self.at(where, key)}: {key} {said}")

    def at(self, where: tuple[str, int], key: str) -> str:
        return f"{self.name}, line {line_of(self.text, where, key)}, key {key}"


def line_of(text: str, where: tuple[str, int], key: str) -> int:
    """The line of a key in the n-th table of a name, or the line of that table, or 1.

    >>> line_of('[task]\\ndata = "digits"\\n[[methods]]\\n[[methods]]\\nup = "raw"', ("methods", 1), "up")
    5
    """
    table, seen, found = "", -1, 1
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[+\s*([\w.-]+)\s*\]+", line):
            table = head[1]
            seen += table == where[0]
            if table == where[0] and seen == where[1]:
                found = number
            if not where[0] and table == key:
                return number
        elif table == where[0] and max(seen, 0) == where[1] and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return found


def _syntax(text: str, name: str, said: str) -> str:
    """tomllib names the line; the key is what stands before the = there."""
    found = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)", said)
    lines = text.splitlines() or [""]
    number = int(found[1]) if found and found[1] else len(lines)
    key = re.match(r"\s*([\w.\"'-]+)\s*=", lines[min(number, len(lines)) - 1])
    reason = said[: found.start()].strip() if found else said
    return f"{name}, line {number}{f', key {key[1]}' if key else ''}: {reason[:1].lower()}{reason[1:]}"


def _nearest(key: str, known: Any) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
