"""Deltas of models: exact by default, checked at both ends, and nothing but DecodeError for what is no delta."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

import perbit
from golden.make import gradient
from perbit import delta, files
from perbit.cli import main
from perbit.coding.bits import Reader, Writer
from perbit.delta import steps
from perbit.dtypes import named, stored

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
GOLDEN = Path(__file__).parent / "golden" / "delta.pbit"
RNG = np.random.default_rng(0)
Model = dict[str, Any]


def base() -> Model:
    """Exact on every machine."""
    return {
        "large": gradient(70_000).astype(ml_dtypes.bfloat16).reshape(700, 100),
        "small": gradient(300, 1),
        "half": gradient(90, 2).astype(np.float16),
        "eighth": gradient(40, 3).astype(ml_dtypes.float8_e4m3fn),
        "mask": np.where(np.tri(4, dtype=bool), np.float32(0), np.float32(-np.inf)),
        "steps": np.array(7),
        "gone": gradient(5),
    }


def successor() -> Model:
    new = {name: x for name, x in base().items() if name != "gone"}
    new["large"] = new["large"].copy()
    new["large"][:90] = (new["large"][:90] + gradient(9000, 4).reshape(90, 100) / 64).astype(ml_dtypes.bfloat16)
    new["small"] = gradient(300, 1) * np.float32(1.001)
    new["eighth"] = -new["eighth"]
    return {**new, "steps": np.array(8), "added": np.array([[np.nan, 1.0]])}


def same(ours: Model, theirs: Model) -> bool:
    def said(model: Model) -> list[Any]:
        return [(name, x.dtype.name, x.shape, x.tobytes()) for name, x in model.items()]

    return said(ours) == said(theirs)


def test_every_bit_of_every_dtype_comes_out() -> None:
    made = delta.diff(base(), successor())
    assert same(delta.apply(base(), made), successor())
    how = {name: how for name, _, _, how in delta.about(made)["tensors"]}
    assert how == {
        "large": "steps", "small": "steps", "half": "same", "eighth": "steps", "mask": "same", "steps": "whole", "added": "whole",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", steps.EXPONENTS)
@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 3000), share=st.sampled_from([0, 3, 255]), seed=st.integers(0, 99))
def test_steps_lead_from_any_bits_to_any_bits(dtype: str, n: int, share: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = np.dtype(f"u{stored(dtype).itemsize}")
    old, other = rng.integers(0, np.iinfo(kind).max, (2, n), kind, endpoint=True)
    new = np.where(rng.integers(256, size=n) < share, other, old + (rng.integers(9, size=n) == 0).astype(kind))
    out = Writer()
    steps.write(old, new, dtype, out)
    src = Reader(out.join())
    assert np.array_equal(steps.read(old, dtype, src), new)
    src.end()


def test_two_bf16_checkpoints_a_few_adamw_steps_apart_take_at_most_60_percent_of_zstd_of_the_xor() -> None:
    import diff  # benchmarks/diff.py

    old, new = diff.checkpoints(96, 3, torch.bfloat16)
    row = diff.measured("bf16", old, new)  # which ends the program unless every bit comes out
    assert row["ratio"] <= 0.6


def test_tensors_of_torch_are_taken_too() -> None:
    old, new = ({"w": torch.full((40, 40), value).bfloat16()} for value in (1.0, 1.01))
    assert np.array_equal(delta.apply(old, delta.diff(old, new))["w"], np.full((40, 40), 1.01, ml_dtypes.bfloat16))


def test_a_spec_codes_the_differences_and_the_digest_is_that_of_the_result() -> None:
    old = {"w": gradient(40_000).reshape(200, 200), "b": gradient(200)}
    new = {"w": old["w"] + gradient(40_000, 1).reshape(200, 200) / 16, "b": old["b"] * np.float32(1.01)}
    exact, coded = delta.diff(old, new), delta.diff(old, new, "uniform(4) | rans", seed=0)
    assert len(coded) < len(exact) / 3
    got = delta.apply(old, coded)
    assert np.array_equal(got["b"], new["b"])  # raw in the plan
    away = np.abs(got["w"] - new["w"]).max()
    assert 0 < away < 0.1 * np.abs(new["w"] - old["w"]).max()
    assert delta.about(coded)["exact"] is False


def test_a_delta_made_long_ago() -> None:
    assert same(delta.apply(base(), GOLDEN.read_bytes()), successor())


# --- what does not belong together -----------------------------------------------------------------------------------


def test_another_base_is_refused() -> None:
    made = delta.diff(base(), successor())
    other = {**base(), "small": base()["small"] + np.float32(1)}
    with pytest.raises(delta.DeltaError, match="made for another model"):
        delta.apply(other, made)


def test_a_frame_that_is_no_delta() -> None:
    with pytest.raises(delta.DeltaError, match="no delta"):
        delta.apply(base(), perbit.dumps(base() | {"mask": np.zeros(3)}, "raw"))


def rewritten(made: bytes, **changes: Any) -> bytes:
    """A delta that says something else of itself, with a good checksum."""
    parts = perbit.loads(made)
    head = json.loads(parts["delta"].tobytes()) | changes
    parts["delta"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    return perbit.dumps(parts, "raw", seed=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"result": "0" * 64},
        {"tensors": [["large", "bfloat16", [700, 100], "steps"]]},
        {"tensors": [["large", "bfloat16", [700, 100]]]},
        {"tensors": [["nowhere", "bfloat16", [700, 100], "steps"]]},
        {"tensors": [["steps", "int64", [], "steps"]]},
        {"tensors": [["steps", "object", [], "whole"]]},
        {"tensors": [["steps", "int64", ["a"], "whole"]]},
        {"tensors": [["nowhere", "int64", [], "same"]]},
        {"tensors": [["steps", "int64", [], "how"]]},
        {"tensors": [["steps", "int64", [], "same"]] * 2},
        {"tensors": 3},
    ],
)
def test_a_head_that_lies_is_a_decode_error(changes: dict[str, Any]) -> None:
    with pytest.raises(perbit.DecodeError):
        delta.apply(base(), rewritten(delta.diff(base(), successor()), **changes))


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 10**6), value=st.integers(0, 255), part=st.sampled_from(["delta", "steps", "others"]))
def test_bytes_that_were_changed_are_a_decode_error_or_harmless(at: int, value: int, part: str) -> None:
    parts = perbit.loads(GOLDEN.read_bytes())
    data = parts[part].copy()
    data[at % len(data)] = value
    try:
        got = delta.apply(base(), perbit.dumps({**parts, part: data}, "raw"))
    except perbit.DecodeError:
        return
    assert same({name: got[name] for name in sorted(got)}, {name: successor()[name] for name in sorted(got)})


def test_a_delta_that_leads_to_far_more_values_is_refused_first() -> None:
    made = delta.diff({"a": np.zeros(3)}, {"a": np.zeros(3), "b": np.zeros(5000)})
    with pytest.raises(perbit.LimitError):
        delta.apply({"a": np.zeros(3)}, made, max_values=100)


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(base(), "old.safetensors", {"step": "1"})
    save_file(successor(), "new.safetensors", {"step": "2"})


@pytest.mark.usefixtures("saved")
def test_diff_and_apply_on_files_with_their_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "old.safetensors", "new.safetensors", "-o", "d.pbit"]) == 0
    said = capsys.readouterr().out
    assert "exact" in said
    assert "\n7 tensors, " in said  # metadata are none
    assert main(["apply", "old.safetensors", "d.pbit", "-o", "got.safetensors"]) == 0
    assert "got.safetensors: 7 tensors, digest" in capsys.readouterr().out
    with safe_open("got.safetensors", "np") as file:
        assert file.metadata() == {"step": "2"}
    got, meant = (files.read_tensors(Path(name)) for name in ("got.safetensors", "new.safetensors"))
    assert same(dict(sorted(got.items())), dict(sorted(meant.items())))  # type: ignore[union-attr]


@pytest.mark.usefixtures("saved")
def test_diff_and_apply_replace_nothing_and_name_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "old.safetensors", "new.safetensors", "-o", "new.safetensors"]) == 2
    assert main(["diff", "old.safetensors", "new.safetensors", "-o", "d.pbit", "--json"]) == 0
    assert main(["apply", "new.safetensors", "d.pbit", "-o", "got.safetensors"]) == 2
    assert "made for another model" in capsys.readouterr().err
    assert main(["apply", "old.safetensors", "d.pbit", "-o", "got.npz"]) == 2
    assert ".npz file cannot hold bfloat16; write a .safetensors file" in capsys.readouterr().err
    assert not Path("got.npz").exists()
    assert not Path("got.safetensors").exists()


def piped(data: bytes, *arguments: str) -> bytes:
    done = subprocess.run([sys.executable, "-m", "perbit.cli", *arguments], input=data, capture_output=True, check=True)
    return done.stdout


@pytest.mark.usefixtures("saved")
def test_deltas_and_models_go_through_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    new = Path("new.safetensors").read_bytes()
    made = piped(new, "diff", "old.safetensors", "-", "-o", "-")
    for arguments, data in (
        (["apply", "old.safetensors", "-", "-o", "-", "--json"], made),
        (["apply", "-", "d.pbit", "-o", "-"], Path("old.safetensors").read_bytes()),
    ):
        Path("d.pbit").write_bytes(made)
        Path("got.safetensors").write_bytes(piped(data, *arguments))
        got, meant = (dict(files.read_tensors(Path(name))) for name in ("got.safetensors", "new.safetensors"))  # type: ignore[call-overload]
        assert same(dict(sorted(got.items())), dict(sorted(meant.items())))
    assert main(["apply", "-", "-", "-o", "-"]) == 2
    assert main(["diff", "-", "-", "-o", "d.pbit", "--force"]) == 2
    assert capsys.readouterr().err.count("only one input can be - (standard input)") == 2
    np.save("x.npy", gradient(2000))
    lone = piped(Path("x.npy").read_bytes(), "diff", "x.npy", "-", "-o", "-")
    assert np.array_equal(np.load(io.BytesIO(piped(lone, "apply", "x.npy", "-", "-o", "-"))), gradient(2000))


@pytest.mark.usefixtures("saved")
def test_inspect_says_what_a_delta_leads_from_and_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "old.safetensors", "new.safetensors", "-o", "exact.pbit"]) == 0
    finite = ["large", "small", "half"]
    for name, model in (("a", base()), ("b", successor())):
        save_file({key: model[key] for key in finite}, f"{name}.safetensors")
    assert main(["diff", "a.safetensors", "b.safetensors", "-o", "coded.pbit", "--spec", "uniform(4) | rans"]) == 0
    head = delta.about(Path("exact.pbit").read_bytes())
    capsys.readouterr()
    assert main(["inspect", "exact.pbit"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("exact.pbit: delta, ")
    assert head["base"] in said
    assert head["result"] in said
    assert "every bit is kept" in said
    assert "large  bfloat16 (700, 100)  steps\n" in said
    assert "(metadata of the file)  uint8" in said
    assert "__metadata__" not in said
    assert main(["inspect", "coded.pbit", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["kind"], info["exact"]) == ("delta", False)
    sent = {tensor["name"]: (tensor["how"], tensor.get("spec")) for tensor in info["tensors"]}
    assert sent == {"large": ("added", "uniform(4) | rans"), "small": ("steps", None), "half": ("same", None)}
    assert sum(info["parts"].values()) + info["header_bytes"] + info["checksum_bytes"] == info["n_bytes"]


@pytest.mark.usefixtures("saved")
def test_a_delta_is_not_decoded_but_applied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "old.safetensors", "new.safetensors", "-o", "d.pbit"]) == 0
    assert main(["decode", "d.pbit"]) == 2
    assert "d.pbit is a delta; make the new model with: perbit apply OLD d.pbit -o NEW" in capsys.readouterr().err
    assert not Path("d.npz").exists()


def test_a_model_is_no_delta(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bytes_only = {name: np.zeros(3, np.uint8) for name in ("delta", "steps", "others")}
    for tensors, said in ((bytes_only, "this is no delta"), ({**base(), "delta": np.zeros(3)}, "message")):
        (tmp_path / "m.pbit").write_bytes(perbit.dumps({n: x for n, x in tensors.items() if n != "mask"}, "raw"))
        main(["inspect", str(tmp_path / "m.pbit")])
        assert said in "".join(capsys.readouterr())


def test_lone_arrays_and_specs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("old.npy", gradient(4000).reshape(40, 100))
    np.save("new.npy", gradient(4000, 1).reshape(40, 100))
    assert main(["diff", "old.npy", "new.npy", "-o", "d.pbit", "--spec", "uniform(8) | rans"]) == 0
    assert "by uniform(8) | rans" in capsys.readouterr().out
    assert main(["apply", "old.npy", "d.pbit", "-o", "got.npy"]) == 0
    assert np.load("got.npy") == pytest.approx(np.load("new.npy"), abs=1e-2)


def test_dtypes_by_name() -> None:
    assert named("bfloat16") == ml_dtypes.bfloat16
