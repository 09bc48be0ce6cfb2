"""Specs as text: `topk(0.01, positions=golomb) | qsgd(15) | rans`. One grammar for the API, the CLI, files and plots.

    spec  = call { "|" call }
    call  = name [ "(" [ argument { "," argument } ] ")" ]
    argument = [ name "=" ] value
    value = number | "text" | true | false | none | call | "?"    (a bare name is a codec, or text where text is wanted)

`parse(str(codec)) == codec` for every codec. A `?` makes the spec a template: a budget decides the value (perbit.plan.template).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from dataclasses import dataclass
from typing import Any

from perbit.coding import registry
from perbit.coding.codec import Codec, Pipeline, format_value, parameters
from perbit.errors import SpecError

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?))
    |(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>[|(),=?]))""",
    re.VERBOSE,
)
_WORDS: dict[str, object] = {"true": True, "false": False, "none": None}
MAX_DEPTH = 8
MAX_STAGES = 16
MAX_TEXT = 10_000
_LONGEST_NUMBER = 100  # characters; Python itself refuses to read those of thousands


class Hole:
    """The value of a `?`."""


HOLE = Hole()


@dataclass(frozen=True)
class Call:
    """One call of a spec, before it is looked up: a name and its arguments."""

    name: str
    positional: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()
    bare: bool = False  # written without parentheses


def parse(text: str) -> Codec:
    """Read a spec.

    >>> parse("topk(0.01)|rans")
    Traceback (most recent call last):
    perbit.errors.SpecError: topk gives floats but rans takes symbols; put a quantizer between them, e.g. topk(0.01) | qsgd(15) | rans
    """
    return assemble([build(call) for call in parse_calls(text)])


CodecLike = Codec | str


def codec(spec: CodecLike) -> Codec:
    """A codec from its spec (codecs pass through).

    >>> str(codec("topk(ratio=0.01,positions=bitmap())|fp16"))
    'topk(0.01, positions=bitmap) | fp16'
    """
    return parse(spec) if isinstance(spec, str) else spec


def parse_calls(text: str) -> list[Call]:
    """The calls of a spec, nothing looked up yet."""
    if len(text) > MAX_TEXT:
        raise SpecError(f"a spec has at most {MAX_TEXT} characters, got {len(text)}")
    reader = _Parser(text)
    calls = reader.pipeline()
    reader.expect_end()
    return calls


def assemble(stages: list[Codec]) -> Codec:
    """One stage as itself, several as a pipeline."""
    if len(stages) > MAX_STAGES:
        raise SpecError(f"a pipeline has at most {MAX_STAGES} stages, got {len(stages)}")
    return stages[0] if len(stages) == 1 else Pipeline(tuple(stages))


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def peek(self) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            rest = self.text[self.position :].strip()
            return ("end", "") if not rest else ("bad", rest[0])
        kind = match.lastgroup or ""
        return kind, match.group(kind)

    def next(self) -> tuple[str, str]:
        token = self.peek()
        match = _TOKEN.match(self.text, self.position)
        if match:
            self.position = match.end()
        return token

    def accept(self, mark: str) -> bool:
        if self.peek() == ("mark", mark):
            self.next()
            return True
        return False

    def fail(self, wanted: str) -> SpecError:
        kind, value = self.peek()
        got = "the end" if kind == "end" else repr(value)
        return SpecError(f"expected {wanted} at character {self.position + 1} of {self.text!r}, got {got}")

    def expect_end(self) -> None:
        if self.peek()[0] != "end":
            raise self.fail("'|' or the end of the spec")

    def pipeline(self) -> list[Call]:
        calls = [self.call()]
        while self.accept("|"):
            calls.append(self.call())
        return calls

    def call(self) -> Call:
        if self.peek()[0] != "name":
            raise self.fail("a codec's name")
        name = self.next()[1]
        if not self.accept("("):
            return Call(name, bare=True)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SpecError(f"codecs nest at most {MAX_DEPTH} deep")
        positional: list[Any] = []
        named: list[tuple[str, Any]] = []
        while not self.accept(")"):
            self.argument(positional, named)
            if not self.accept(",") and self.peek() != ("mark", ")"):
                raise self.fail("',' or ')'")
        self.depth -= 1
        return Call(name, tuple(positional), tuple(named))

    def argument(self, positional: list[Any], named: list[tuple[str, Any]]) -> None:
        value = self.value()
        if isinstance(value, Call) and value.bare and self.accept("="):
            named.append((value.name, self.value()))
        elif named:
            raise SpecError(f"in {self.text!r} a plain argument follows a named one; put plain arguments first")
        else:
            positional.append(value)

    def value(self) -> Any:
        kind, token = self.peek()
        if kind == "number":
            self.next()
            if len(token) > _LONGEST_NUMBER:
                raise SpecError(f"a number in a spec has at most {_LONGEST_NUMBER} characters, got {len(token)}")
            return int(token) if re.fullmatch(r"[-+]?\d+", token) else float(token)
        if kind == "text":
            self.next()
            try:
                return json.loads(token)
            except json.JSONDecodeError:
                raise SpecError(f"{token} is not a text that can be read") from None
        if kind == "name":
            call = self.call()
            return _WORDS[call.name] if call.bare and call.name in _WORDS else call
        if self.accept("?"):
            return HOLE
        raise self.fail("a value")


def build(call: Call) -> Codec:
    """The codec that a call names, with its arguments checked."""
    cls = registry.by_name(call.name)
    if cls is None:
        close = difflib.get_close_matches(call.name, registry.classes(), 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; perbit.codecs() lists them all"
        raise SpecError(f"there is no codec {call.name!r}{hint}")
    fields = parameters(cls)
    if len(call.positional) > len(fields):
        raise SpecError(
            f"{cls.name} takes at most {len(fields)} arguments ({_signature(cls)}), got {len(call.positional)}"
        )
    arguments = dict(zip((f.name for f in fields), call.positional, strict=False))
    known = {f.name for f in fields}
    for name, value in call.named:
        if name not in known:
            raise SpecError(f"{cls.name} has no parameter {name!r}; it has {_signature(cls)}")
        if name in arguments:
            raise SpecError(f"{cls.name} got {name!r} twice")
        arguments[name] = value
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in arguments:
            raise SpecError(f"{cls.name} needs {field.name!r}: {_signature(cls)}")
    return construct(cls, {name: _argument(cls, name, value) for name, value in arguments.items()})


def construct(cls: type[Codec], arguments: dict[str, Any]) -> Codec:
    """Make a codec; whatever its own checks dislike becomes a SpecError."""
    try:
        return cls(**arguments)
    except SpecError:
        raise
    except (TypeError, ValueError) as error:
        raise SpecError(f"{cls.name}: {error}") from error


def _argument(cls: type[Codec], name: str, value: Any) -> Any:
    if value is HOLE:
        raise SpecError(
            f"{cls.name}({name}=?) leaves {name} open; perbit.fit_budget(tensors, spec, n_bits=...) finds it, or write a number"
        )
    if not isinstance(value, Call):
        return value
    wants_codec = "Codec" in str(next(f.type for f in parameters(cls) if f.name == name))
    if wants_codec:
        return build(value)
    if value.bare:
        return value.name  # text without quotes: norm=max
    raise SpecError(f"{cls.name}: {name} takes no codec, got {value.name}(...)")


def _signature(cls: type[Codec]) -> str:
    def one(field: dataclasses.Field[Any]) -> str:
        required = field.default is dataclasses.MISSING
        return field.name if required else f"{field.name}={format_value(field.default)}"

    return f"{cls.name}({', '.join(map(one, parameters(cls)))})"


def signature(cls: type[Codec]) -> str:
    """How a codec is called, with its defaults.

    >>> import perbit
    >>> signature(type(perbit.codec("fp16")))
    'fp16'
    """
    return _signature(cls) if parameters(cls) else cls.name
