"""Rules of plans, `perbit plan`, and the DeepReduce presets."""

from __future__ import annotations

import json
from pathlib import Path

import dr_notation
import numpy as np
import pytest

import perbit
from perbit import cli
from perbit.commands.plan import describe
from perbit.commands.planning import split_rule
from perbit.errors import SpecError
from perbit.plan.plan import Plan
from perbit.plan.rules import Rule

RNG = np.random.default_rng(8)
MODEL = {
    "conv.weight": RNG.normal(size=(16, 8, 3, 3)).astype(np.float32),
    "conv.bias": RNG.normal(size=16).astype(np.float32),
    "embed.weight": (RNG.normal(size=(200, 32)) * (RNG.random((200, 1)) < 0.1)).astype(np.float32),
    "norm.long": RNG.normal(size=5000).astype(np.float32),
    "steps": np.arange(3),
}


@pytest.mark.parametrize(
    ("text", "name", "shape", "expected"),
    [
        ("conv*", "conv.weight", (1,), True),
        ("conv*", "my.conv", (1,), False),
        ("dims:2", "x", (3, 4), True),
        ("dims:2", "x", (3, 4, 5), False),
        ("dims:..1", "x", (), True),
        ("size:12", "x", (3, 4), True),
        ("size:13..", "x", (3, 4), False),
        ("size:1e1..20", "x", (3, 4), True),
        ("*.w dims:2 size:..11", "a.w", (3, 4), False),
        ("", "anything", (9,), False),
        ("", "", (9,), True),
        ('"my tensor"', "my tensor", (9,), True),
        ('"my tensor"', "my_tensor", (9,), False),
        ('"w*[0]"', "w*[0]", (9,), True),
        ('"w*[0]"', "w10", (9,), False),
        ('""', "", (9,), True),
    ],
)
def test_rules(text: str, name: str, shape: tuple[int, ...], expected: bool) -> None:
    assert Rule.of(text).matches(name, shape) is expected


@pytest.mark.parametrize("text", ["dims:", "dims:x", "size:5..2", "size:nan", "a b", "dims:2..x", '"a', '"a" dims:2'])
def test_rules_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SpecError):
        Plan.of("fp16", rules={text: "raw"})


def test_small_and_flat_tensors_are_raw_and_the_first_rule_wins() -> None:
    plan = Plan.of("topk(0.1)", rules=[("embed*", "nonzero"), ("dims:2", "fp16"), ("size:..20", "bf16")])
    chosen = {name: str(plan.codec_for(name, x.shape, x.dtype.name)) for name, x in MODEL.items()}
    assert chosen == {
        "conv.weight": "topk(0.1)",
        "conv.bias": "bf16",
        "embed.weight": "nonzero",
        "norm.long": "raw",
        "steps": "raw",
    }
    assert str(Plan.of("fp16", flat_is_small=False).codec_for("norm.long", (5000,))) == "fp16"


def test_a_report_adds_up_to_a_real_frame() -> None:
    plan = Plan.of("topk(0.1) | fitpoly", rules={"embed*": "nonzero(positions=gaps) | qsgd(15) | rans"})
    report = describe(MODEL, plan, seed=3)
    assert report["n_bytes"] == len(perbit.dumps(MODEL, plan, seed=3))
    assert report["header_bytes"] + sum(row["n_bytes"] for row in report["tensors"]) == report["n_bytes"]
    assert report["input_bytes"] == sum(x.nbytes for x in MODEL.values())
    embed = next(row for row in report["tensors"] if row["name"] == "embed.weight")
    assert embed["ratio"] == embed["input_bytes"] / embed["n_bytes"] > 10


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    perbit.files.write_tensors(path, MODEL)
    assert cli.main(["plan", str(path), "topk(0.1) | fp16", "--rule", "dims:4=threelc", "--small", "bf16"]) == 0
    text = capsys.readouterr().out
    assert "conv.weight" in text
    assert "threelc" in text
    assert text.splitlines()[-1].startswith("total")
    assert cli.main(["plan", str(path), "topk(0.1) | fp16", "--flat-too", "--small-below", "0", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["tensors"]}
    assert rows["norm.long"]["spec"] == "topk(0.1) | fp16"
    assert rows["steps"]["spec"] == "raw"


def test_one_array_is_a_model_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "layer.npy", MODEL["conv.weight"])
    assert cli.main(["plan", str(tmp_path / "layer.npy"), "fp16"]) == 0
    assert "layer" in capsys.readouterr().out


@pytest.mark.parametrize("rule", ["conv*", "=fp16", "conv*=", "a b=fp16", "conv*=nonsense", '"conv=fp16'])
def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str) -> None:
    np.save(tmp_path / "x.npy", MODEL["conv.weight"])
    assert cli.main(["plan", str(tmp_path / "x.npy"), "fp16", "--rule", rule]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_rule_splits_at_the_first_equals_sign() -> None:
    assert split_rule(" fc* = topk(k=3) ") == ("fc*", "topk(k=3)")
    assert split_rule(' "a=b \\" c" = topk(k=3) ') == ('"a=b \\" c"', "topk(k=3)")
    assert split_rule('"a=fp16') == ('"a', "fp16")  # the rule then says what is wrong with it


# ---- presets


@pytest.mark.parametrize("name", dr_notation.PRESETS)
def test_every_preset_is_a_spec_that_works(name: str) -> None:
    spec = dr_notation.PRESETS[name].spec
    x = MODEL["embed.weight"]
    value = perbit.decode(perbit.encode(x, spec, seed=1))
    assert value.shape == x.shape
    assert np.isfinite(value).all()


@pytest.mark.parametrize("index", dr_notation.INDEX)
@pytest.mark.parametrize("value", dr_notation.VALUE)
def test_every_pair_composes(index: str, value: str) -> None:
    assert str(perbit.codec(dr_notation.dr(index, value, ratio=0.05)))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SpecError, match="bf-p0"):
        dr_notation.dr(index="bloom")
