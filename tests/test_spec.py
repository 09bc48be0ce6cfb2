"""Specs as text and bytes: the grammar, the errors that teach, the registry."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given

import perbit
from perbit.coding import registry
from perbit.coding.bits import Reader
from perbit.coding.families.general import Deflate
from perbit.coding.spec import parse, signature
from perbit.errors import DecodeError, SpecError
from perbit.frame.wirespec import read_spec, write_spec


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("topk(0.01)", "topk(0.01)"),
        ("topk(ratio=1e-2)", "topk(0.01)"),
        ("topk(100)", "topk(k=100)"),
        ("topk(1)", "topk(k=1)"),
        ("topk(1.0)", "topk(1.0)"),
        (" topk( 0.01 , positions = golomb() )|fp16 ", "topk(0.01) | fp16"),
        ("topk(0.01, positions=bitmap)", "topk(0.01, positions=bitmap)"),
        ("qsgd(15, 512)", "qsgd(15)"),
        ("qsgd(15, norm=max)", 'qsgd(15, norm="max")'),
        ('qsgd(levels=15, bucket=0, norm="l2")|rans', "qsgd(15, 0) | rans"),
        ("raw()", "raw"),
        ("threshold(1)", "threshold(1.0)"),
        ("uniform(4, random=true)", "uniform(4, true)"),
    ],
)
def test_text_is_read_and_printed_canonically(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        ("", "expected a codec's name"),
        ("topk(0.01) |", "got the end"),
        ("topk(0.01) rans", "expected '|' or the end"),
        ("topk(0.01", "expected ',' or ')'"),
        ("topk(0.01 0.02)", "expected ',' or ')'"),
        ("tpk(0.01)", "did you mean 'topk'?"),
        ("nonsense", "perbit.codecs() lists them all"),
        ("topk", "give a ratio or k"),
        ("topk(0.0)", "above 0 and at most 1"),
        ("topk(0)", "at least 1"),
        ("topk(0.1, k=5)", "give a ratio or k"),
        ("topk(0.1, size=5)", "no parameter 'size'"),
        ("topk(0.1, ratio=0.2)", "got 'ratio' twice"),
        ("topk(positions=golomb, 0.1)", "put plain arguments first"),
        ("topk(0.1, positions=3)", "must be a position coder"),
        ("topk(0.1, positions=fp16)", "must be a position coder"),
        ("qsgd", "qsgd needs 'levels'"),
        ("qsgd(1, 2, 3, 4)", "at most 3 arguments"),
        ("qsgd(1.5)", "levels must be"),
        ("qsgd(15, norm=l7)", '"l2" or "max"'),
        ("qsgd(15, bucket=raw(1))", "takes no codec"),
        ("uniform(13)", "bits must be 1 to 12"),
        ("topk(0.01) | rans", "put a quantizer between them, e.g. topk(0.01) | qsgd(15) | rans"),
        ("topk(0.01) | zstd", "topk(0.01) | fp16 | zstd"),
        ("qsgd(15) | zstd", "qsgd(15) | pack | zstd"),
        ("qsgd(15) | topk(0.1)", "topk(0.1) | qsgd(15)"),
        ("fp16 | topk(0.1)", "topk(0.1) | fp16"),
        ("fp16 | rans", "already gives bytes"),
        ("qsgd(15) | rans | zstd", "nothing can follow rans"),
        ("topk(0.1) | golomb", "topk(0.01, positions=golomb)"),
        ("uniform(4) | rans(", "expected"),
        ('qsgd(15, norm="l2)', "expected a value"),
        ("topk($)", "got '$'"),
        ("topk(" * 20 + ")" * 20, "nest at most"),
        ("raw" + " | raw" * 50, "at most 16 stages"),
        ("x" * 20_000, "at most 10000 characters"),
    ],
)
def test_errors_teach(text: str, lesson: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert lesson in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "lesson"), [("rans", "qsgd(15) | rans"), ("golomb", "positions=golomb"), ("zstd", "fp16 | zstd")]
)
def test_a_tensor_needs_a_codec_for_floats(spec: str, lesson: str) -> None:
    with pytest.raises(SpecError, match=lesson.replace("(", r"\(").replace(")", r"\)").replace("|", r"\|")):
        perbit.encode([1.0], spec)


@given(st.text(max_size=40))
def test_any_text_is_a_codec_or_a_spec_error(text: str) -> None:
    try:
        codec = parse(text)
    except SpecError:
        return
    assert parse(str(codec)) == codec


@given(st.binary(max_size=60))
def test_any_bytes_are_a_codec_or_a_decode_error(data: bytes) -> None:
    try:
        codec = read_spec(Reader(data))
    except DecodeError:
        return
    assert read_spec(Reader(write_spec(codec))) == codec


def test_specs_are_compact() -> None:
    assert write_spec(parse("uniform(4) | rans")).hex() == "02" + "07" + "01" + "0304" + "0b" + "00"
    assert len(write_spec(parse("topk(0.01) | qsgd(15) | rans"))) <= 14


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=0))
def test_every_float_parameter_survives(level: float) -> None:
    codec = perbit.codec(f"threshold({level!r})")
    assert read_spec(Reader(write_spec(codec))) == codec == parse(str(codec))


def test_the_registry_refuses_duplicates() -> None:
    @dataclass(frozen=True)
    class Again(Deflate):
        name = "deflate"

    with pytest.raises(SpecError, match="registered already"):
        registry.register(Again)

    @dataclass(frozen=True)
    class SameNumber(Deflate):
        name = "another"

    with pytest.raises(SpecError, match="wire id 12 belongs to 'deflate'"):
        registry.register(SameNumber)


def test_every_codec_is_listed_with_one_line_and_has_examples() -> None:
    listed = perbit.codecs()
    for cls in registry.classes().values():
        assert listed[signature(cls)].endswith(".")
        assert cls.examples, f"{cls.name} has no examples for the laws"
        assert cls.wire_id, f"{cls.name} has no wire id"
