"""The command line from end to end: files in and out, JSON, exit codes, and one sentence instead of a traceback."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import perbit
from perbit import dtypes, files
from perbit.cli import EXIT_OK, EXIT_USAGE, main

X = np.random.default_rng(0).laplace(size=(30, 40)).astype(np.float32)
MODEL = {
    "w": X,
    "file": X[0],  # numpy.savez has a parameter of this name
    "scalar": np.array(2, np.float32),
    "steps": np.arange(5),
    "mask": np.array([True, False]),
}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def npy() -> str:
    np.save("x.npy", X)
    return "x.npy"


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == EXIT_OK
    out, err = capsys.readouterr()
    assert err == ""
    return out


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(output_of(capsys, *arguments, "--json"))


def complaint_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a user's mistake prints: a sentence on stderr, nothing on stdout."""
    assert main(arguments) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("perbit: ")
    assert "Traceback" not in err
    return err


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and np.array_equal(a[k], b[k]) for k in a
    )


# --- what works ------------------------------------------------------------------------------------------------------


def test_an_array_there_and_back(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = output_of(capsys, "encode", npy, "uniform(4) | rans")
    assert said.startswith("x.pbit: 4.80 kB → ")
    frame = Path("x.pbit").read_bytes()
    assert output_of(capsys, "decode", "x.pbit", "-o", "y.npy") == "y.npy: an array of shape (30, 40)\n"
    assert np.array_equal(np.load("y.npy"), perbit.decode(frame))


def test_the_seed_fixes_the_frame(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        output_of(capsys, "encode", npy, "qsgd(3) | rans", "--seed", "5", "-o", name)
    assert Path("a").read_bytes() == Path("b").read_bytes() == perbit.encode(X, "qsgd(3) | rans", seed=5)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_model_there_and_back(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    if suffix == ".npz":
        np.savez("m.npz", **{name: x for name, x in MODEL.items() if name != "file"}, **{"dir/file": X[0]})
    else:
        save_file(MODEL, "m.safetensors")
    said = output_of(capsys, "encode", f"m{suffix}", "raw | zstd")
    assert "x smaller" in said
    for target in ("back.npz", "back.safetensors"):
        assert output_of(capsys, "decode", "m.pbit", "-o", target) == f"{target}: 5 tensors\n"
    expected = perbit.loads(Path("m.pbit").read_bytes())
    assert same(load_file("back.safetensors"), expected)
    with np.load("back.npz") as back:
        assert same(dict(back), expected)


def test_a_tensor_may_be_called_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.pbit").write_bytes(perbit.dumps(MODEL, "raw"))
    output_of(capsys, "decode", "m.pbit")
    with np.load("m.npz") as back:
        assert same(dict(back), MODEL)


def test_bfloat16_stays_itself_in_safetensors_and_becomes_float32_in_numpy_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    half = X.astype(ml_dtypes.bfloat16)
    Path("m.pbit").write_bytes(perbit.dumps({"h": half}, "raw"))
    output_of(capsys, "decode", "m.pbit", "-o", "m.safetensors")
    output_of(capsys, "decode", "m.pbit", "-o", "m.npz")
    with np.load("m.npz") as back:
        assert np.array_equal(back["h"], half.astype(np.float32))
    output_of(capsys, "encode", "m.safetensors", "raw", "-o", "again.pbit")
    assert perbit.loads(Path("again.pbit").read_bytes())["h"].dtype == half.dtype


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_short_floats_and_metadata_of_safetensors_go_there_and_back(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short = X.astype(getattr(ml_dtypes, kind))
    save_file({"h": short, "w": X}, "m.safetensors", {"format": "pt", "licence": "mine"})
    output_of(capsys, "encode", "m.safetensors", "raw")
    output_of(capsys, "inspect", "m.pbit")
    output_of(capsys, "decode", "m.pbit", "-o", "again.safetensors")
    with safe_open("again.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "licence": "mine"}
    back = files.read_tensors(Path("again.safetensors"))
    assert isinstance(back, dict)
    assert same({name: back[name] for name in ("h", "w")}, {"h": short, "w": X})


def test_short_floats_are_read_where_nobody_imported_ml_dtypes() -> None:
    save_file({"h": X.astype(ml_dtypes.bfloat16)}, "m.safetensors")
    done = subprocess.run(
        [sys.executable, "-m", "perbit.cli", "encode", "m.safetensors", "raw"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_frame_of_bfloat16_can_be_inspected_without_ml_dtypes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    half = X.astype(ml_dtypes.bfloat16)
    Path("m.pbit").write_bytes(perbit.dumps({"h": half, "w": half}, perbit.Plan.of("uniform(4) | rans", {"h": "raw"})))
    dtypes.named.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    tensors = json_of(capsys, "inspect", "m.pbit")["tensors"]
    assert [tensor["dtype"] for tensor in tensors] == ["bfloat16", "bfloat16"]
    assert 'bfloat16 needs the package ml_dtypes: pip install "perbit[files]"' in complaint_of(
        capsys, "decode", "m.pbit"
    )


def test_without_safetensors_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"w": X}, "m.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert 'pip install "perbit[files]"' in complaint_of(capsys, "encode", "m.safetensors", "raw")


def piped(data: bytes, *arguments: str) -> bytes:
    done = subprocess.run([sys.executable, "-m", "perbit.cli", *arguments], input=data, capture_output=True, check=True)
    return done.stdout


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_pipes_carry_models(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_tensors(Path(f"m.{kind}"), MODEL)
    frame = piped(Path(f"m.{kind}").read_bytes(), "encode", "-", "raw")
    assert same(perbit.loads(frame), MODEL)
    assert b"message" in piped(frame, "inspect", "-")
    Path(f"again.{kind}").write_bytes(piped(frame, "decode", "-", "--format", kind, "--json"))
    back = files.read_tensors(Path(f"again.{kind}"))
    assert isinstance(back, dict)
    assert same(back, MODEL)


def test_pipes_carry_arrays_and_leave_no_file(npy: str) -> None:
    frame = piped(Path(npy).read_bytes(), "encode", "-", "raw", "-o", "-")
    assert np.array_equal(np.load(io.BytesIO(piped(frame, "decode", "-", "-o", "-"))), X)
    assert [path.name for path in Path().iterdir()] == [npy]


def specs_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """What each tensor of m.safetensors gets."""
    save_file(MODEL, "m.safetensors")
    json_of(capsys, "encode", "m.safetensors", *arguments, "--force")
    return {t["name"]: t["spec"] for t in json_of(capsys, "inspect", "m.pbit")["tensors"]}


@pytest.mark.parametrize("arguments", [[], ["--plan"]], ids=["default", "the old option"])
def test_small_tensors_stay_raw(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    specs = specs_of(capsys, "uniform(4) | rans", *arguments)
    assert specs == {"w": "uniform(4) | rans", "file": "raw", "scalar": "raw", "steps": "raw", "mask": "raw"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--small", "fp16"], {"w": "fp8", "file": "fp16", "scalar": "fp16"}),
        (["--small", "same"], {"w": "fp8", "file": "fp8", "scalar": "fp8"}),
        (["--small-below", "2000"], {"w": "raw", "file": "raw", "scalar": "raw"}),
        (["--small-below", "5", "--flat-too"], {"w": "fp8", "file": "fp8", "scalar": "raw"}),
        (["--rule", "f*=bf16", "--rule", '"w"=fp16'], {"w": "fp16", "file": "bf16", "scalar": "raw"}),
    ],
)
def test_encode_takes_the_options_of_plan_and_does_what_plan_shows(
    arguments: list[str], expected: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = "fp(5, 2)"
    wanted = {name: chosen.replace("fp8", spec) for name, chosen in expected.items()}
    assert specs_of(capsys, spec, *arguments) == {**wanted, "steps": "raw", "mask": "raw"}
    shown = json_of(capsys, "plan", "m.safetensors", spec, *arguments)
    assert shown["n_bytes"] == Path("m.pbit").stat().st_size
    assert {row["name"]: row["spec"] for row in shown["tensors"]} == {**wanted, "steps": "raw", "mask": "raw"}


def test_encode_with_one_threshold_for_the_whole_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert specs_of(capsys, "topk(0.1) | fp16", "--whole-model")["w"].startswith("threshold(")


def test_a_lone_array_is_coded_whatever_its_size_and_plan_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("bias.npy", X[0])
    assert json_of(capsys, "encode", "bias.npy", "fp16")["spec"] == "fp16"
    assert json_of(capsys, "inspect", "bias.pbit")["spec"] == "fp16"
    shown = json_of(capsys, "plan", "bias.npy", "fp16")
    assert [(row["name"], row["spec"]) for row in shown["tensors"]] == [("bias", "fp16")]
    assert shown["n_bytes"] == Path("bias.pbit").stat().st_size


def test_a_budget_takes_rules_and_a_spec_for_small_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    large = np.random.default_rng(1).laplace(size=(100, 100)).astype(np.float32)
    np.savez("m.npz", **{"w": large, "b": X[0], "embed": X})
    command = ["budget", "m.npz", "topk(?) | fp16", "--bytes", "6000", "-o", "m.pbit"]

    def chosen(*arguments: str) -> dict[str, str]:
        assert json_of(capsys, *command, *arguments, "--force")["n_bytes"] <= 6000
        found = {t["name"]: t["spec"] for t in json_of(capsys, "inspect", "m.pbit")["tensors"]}
        assert found.pop("w").startswith("topk(")
        return found

    assert chosen("--rule", "embed=bf16") == {"b": "raw", "embed": "bf16"}
    assert chosen("--rule", "embed=bf16", "--small", "fp16") == {"b": "fp16", "embed": "bf16"}
    assert all(spec.startswith("topk(") for spec in chosen("--small", "same").values())


def test_json_is_for_programs(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    encoded = json_of(capsys, "encode", npy, "topk(0.1) | fp16")
    n_bytes = Path("x.pbit").stat().st_size
    assert (encoded["n_bytes"], encoded["input_bytes"], encoded["spec"]) == (n_bytes, X.nbytes, "topk(0.1) | fp16")
    assert json_of(capsys, "inspect", "x.pbit") == perbit.inspect(Path("x.pbit").read_bytes())
    assert json_of(capsys, "decode", "x.pbit", "-o", "y.npy")["shapes"] == {"": [30, 40]}
    listed = {row["name"]: row for row in json_of(capsys, "codecs")}
    assert listed["rans"]["takes"] == "symbols"
    assert json_of(capsys, "codecs", "topk")[0]["call"] == listed["topk"]["call"]


def test_inspect_for_people(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    output_of(capsys, "encode", npy, "topk(0.1) | fp16")
    said = output_of(capsys, "inspect", "x.pbit")
    assert "float32 (30, 40)  topk(0.1) | fp16" in said
    assert "positions" in said
    save_file(MODEL, "m.safetensors")
    output_of(capsys, "encode", "m.safetensors", "fp16")
    assert "w  float32 (30, 40)  fp16" in output_of(capsys, "inspect", "m.pbit")


HOSTILE = "\x1b[2J\x1b]0;gotcha\x07w\n  fake"


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "m.pbit"],
        ["plan", "m.npz", "fp16"],
        ["fit", "m.npz"],
        ["rd", "m.npz", "--specs", "sign"],
        ["budget", "m.npz", "topk(?) | fp16", "--bytes", "3000", "--per-tensor"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_name_cannot_command_the_terminal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    model = {HOSTILE: X, "naïve λ": X[:-1]}
    np.savez("m.npz", **model)
    Path("m.pbit").write_bytes(perbit.dumps(model, "fp16"))
    said = output_of(capsys, *arguments)
    assert all(line.isprintable() for line in said.splitlines())
    assert "gotcha" in said


def test_a_name_in_a_complaint_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("m.npz", **{HOSTILE: X})
    assert complaint_of(capsys, "fit", "m.npz", "--layer", "other").rstrip("\n").replace("\n", "").isprintable()


def test_a_name_cannot_lead_out_of_the_output_folder(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("m.npz", **{"/../../escaped": X})
    output_of(capsys, "rd", "m.npz", "--specs", "sign", "-o", "results")
    assert sorted(str(path) for path in Path().rglob("*.json")) == ["results/rd_m__.._.._escaped.json"]


def test_empty_arrays_and_messages(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("e.npy", np.zeros((0, 3), np.float32))
    assert "bits a value" not in output_of(capsys, "encode", "e.npy", "uniform(4) | rans")
    output_of(capsys, "inspect", "e.pbit")
    output_of(capsys, "decode", "e.pbit", "-o", "f.npy")
    assert np.load("f.npy").shape == (0, 3)
    Path("none.pbit").write_bytes(perbit.dumps({}, "raw"))
    assert output_of(capsys, "decode", "none.pbit") == "none.npz: 0 tensors\n"
    assert "message" in output_of(capsys, "inspect", "none.pbit")


def test_bench_measures_and_writes_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json_of(capsys, "bench", "--n", "100000", "--repeats", "1", "--only", "scan", "-o", "bench.json")
    assert rows
    assert all("scan" in row["name"] for row in rows)
    assert json.loads(Path("bench.json").read_text()) == rows


# --- what does not ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", ["", "nosuch", "topk(", "topk(0.1) | rans", "uniform(99)", "raw | deflate(3.5)", "((("]
)
def test_a_malformed_spec(spec: str, npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    complaint_of(capsys, "encode", npy, spec)
    assert not Path("x.pbit").exists()


@pytest.mark.parametrize("command", ["encode", "decode", "inspect"])
def test_a_missing_file(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["nowhere.npy", "raw"] if command == "encode" else ["nowhere.pbit"]
    assert "nowhere" in complaint_of(capsys, command, *arguments)


def test_a_folder_is_no_file(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder.npy").mkdir()
    complaint_of(capsys, "encode", "folder.npy", "raw")
    complaint_of(capsys, "inspect", "folder.npy")
    assert "folder.npy" in complaint_of(capsys, "encode", npy, "raw", "-o", "folder.npy")
    assert list(Path("folder.npy").iterdir()) == []


def test_a_suffix_nobody_knows(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.txt").write_text("1 2 3")
    assert ".safetensors" in complaint_of(capsys, "encode", "x.txt", "raw")
    output_of(capsys, "encode", npy, "raw")
    assert ".npy" in complaint_of(capsys, "decode", "x.pbit", "-o", "y.npz")
    Path("m.pbit").write_bytes(perbit.dumps(MODEL, "raw"))
    assert ".safetensors" in complaint_of(capsys, "decode", "m.pbit", "-o", "y.npy")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("content", ["empty", "garbage", "half", "of another kind"])
def test_a_damaged_file(suffix: str, content: str, npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"x": X}, "good.safetensors")
    np.savez("good.npz", x=X)
    np.save("good.npy", X)
    other = {".npy": "good.npz", ".npz": "good.npy", ".safetensors": "good.npz"}[suffix]
    data = {
        "empty": b"",
        "garbage": b"garbage " * 50,
        "half": Path(f"good{suffix}").read_bytes()[:1000],
        "of another kind": Path(other).read_bytes(),
    }[content]
    Path(f"bad{suffix}").write_bytes(data)
    assert f"bad{suffix}" in complaint_of(capsys, "encode", f"bad{suffix}", "raw")


def test_a_damaged_member_of_an_archive(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez_compressed("bad.npz", x=X)
    data = bytearray(Path("bad.npz").read_bytes())
    data[1000:1010] = b"0123456789"
    Path("bad.npz").write_bytes(data)
    assert "bad.npz" in complaint_of(capsys, "encode", "bad.npz", "raw")


def test_pickles_are_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("p.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    complaint_of(capsys, "encode", "p.npy", "raw")


def test_arrays_that_cannot_be_coded(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("nan.npy", np.array([1, np.nan, np.inf], np.float32))
    assert "1 NaN and 1 infinite" in complaint_of(capsys, "encode", "nan.npy", "fp16")
    np.save("complex.npy", np.zeros(3, complex))
    assert "complex128" in complaint_of(capsys, "encode", "complex.npy", "raw")
    np.save("ints.npy", np.arange(3))
    assert "only raw" in complaint_of(capsys, "encode", "ints.npy", "fp16")


def test_an_archive_with_a_and_a_npy_keeps_both_apart(capsys: pytest.CaptureFixture[str]) -> None:
    both = {"a": X, "a.npy": -X}
    np.savez("m.npz", **both)
    output_of(capsys, "encode", "m.npz", "raw")
    assert same(perbit.loads(Path("m.pbit").read_bytes()), both)
    assert "'a.npy'; choose another format" in complaint_of(capsys, "decode", "m.pbit", "-o", "back.npz")
    output_of(capsys, "decode", "m.pbit", "-o", "back.safetensors")
    assert same(load_file("back.safetensors"), both)
    Path("alone.pbit").write_bytes(perbit.dumps({"a.npy": X}, "raw"))
    output_of(capsys, "decode", "alone.pbit")
    with np.load("alone.npz") as back:
        assert same(dict(back), {"a.npy": X})


def test_an_archive_with_two_tensors_of_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile("m.npz", "w") as archive:
        for member, value in (("a", X), ("a.npy", -X)):
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, value)
    assert "two tensors called 'a'" in complaint_of(capsys, "encode", "m.npz", "raw")


def test_an_archive_that_holds_other_files(capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile("m.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    assert "m.npz" in complaint_of(capsys, "encode", "m.npz", "raw")


@pytest.mark.parametrize(("name", "target"), [("a\0b", "m.npz"), ("__metadata__", "m.safetensors")])
def test_names_a_format_cannot_hold(name: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.pbit").write_bytes(perbit.dumps({name: X}, "raw"))
    assert "choose another format" in complaint_of(capsys, "decode", "m.pbit", "-o", target)
    assert not Path(target).exists()


def test_a_damaged_frame_and_a_limit(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    output_of(capsys, "encode", npy, "raw")
    for command in ("decode", "inspect"):
        assert "--max-values 1200" in complaint_of(capsys, command, "x.pbit", "--max-values", "1199")
    Path("x.pbit").write_bytes(Path("x.pbit").read_bytes()[:-1])
    for command in ("decode", "inspect"):
        assert "damaged" in complaint_of(capsys, command, "x.pbit")


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_there_and_back_does_not_replace_the_original(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    original = Path(f"x{suffix}")
    np.save("x.npy", X) if suffix == ".npy" else np.savez("x.npz", w=X)
    before = original.read_bytes()
    output_of(capsys, "encode", str(original), "uniform(2) | rans")
    said = complaint_of(capsys, "decode", "x.pbit")
    assert said == f"perbit: {original} exists already; choose another name with -o, or replace it with --force\n"
    assert original.read_bytes() == before
    output_of(capsys, "decode", "x.pbit", "--force")
    assert original.read_bytes() != before


def test_encode_replaces_neither_its_input_nor_another_file(capsys: pytest.CaptureFixture[str]) -> None:
    save_file(MODEL, "m.safetensors")
    before = Path("m.safetensors").read_bytes()
    Path("m.pbit").write_text("precious")
    Path("link").symlink_to("nowhere")
    for output in (["-o", "m.safetensors"], ["-o", "./m.safetensors"], ["-o", "link"], []):
        assert "exists already" in complaint_of(capsys, "encode", "m.safetensors", "raw", *output)
    assert Path("m.safetensors").read_bytes() == before
    assert Path("m.pbit").read_text() == "precious"
    assert Path("link").is_symlink()
    output_of(capsys, "encode", "m.safetensors", "raw", "--force")
    assert same(perbit.loads(Path("m.pbit").read_bytes()), MODEL)


def test_a_budget_replaces_its_frame_only_by_force(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("budget", npy, "topk(?) | fp16", "-o", "x.pbit", "--bytes")
    output_of(capsys, *command, "500")
    assert "x.pbit exists already" in complaint_of(capsys, *command, "1000")
    assert 490 <= Path("x.pbit").stat().st_size <= 500
    output_of(capsys, *command, "1000", "--force")
    assert 990 <= Path("x.pbit").stat().st_size <= 1000


def test_a_failed_run_leaves_files_as_they_were(npy: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.pbit").write_text("precious")
    before = sorted(Path().iterdir())
    complaint_of(capsys, "encode", npy, "nosuch")
    complaint_of(capsys, "decode", "x.pbit", "-o", "y.npy")
    complaint_of(capsys, "encode", npy, "raw", "-o", "nowhere/x.pbit")
    assert sorted(Path().iterdir()) == before
    assert Path("x.pbit").read_text() == "precious"


def test_writing_that_fails_half_way_leaves_no_file(
    npy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "No space left" in complaint_of(capsys, "encode", npy, "raw")
    assert [path.name for path in Path().iterdir()] == ["x.npy"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["encode"],
        ["encode", "x.npy", "raw", "--threads", "0"],
        ["encode", "x.npy", "raw", "--threads", "two"],
        ["decode", "x.pbit", "--max-values", "many"],
        ["bench", "--repeats", "0"],
        ["bench", "--n", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == EXIT_USAGE
    assert "usage: perbit" in capsys.readouterr().err


def test_an_unknown_command_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no command nosuch" in complaint_of(capsys, "nosuch", "x.npy")
    assert "did you mean encode?" in complaint_of(capsys, "encod", "x.npy", "raw")


def test_the_installed_command_runs(npy: str) -> None:
    done = subprocess.run([sys.executable, "-m", "perbit.cli", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"perbit {perbit.__version__}\n"
    bad = subprocess.run([sys.executable, "-m", "perbit.cli", "encode", npy, "nosuch"], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (EXIT_USAGE, "")
    assert bad.stderr.startswith("perbit: there is no codec 'nosuch'")


@pytest.mark.parametrize("arguments", [["codecs"], ["codecs", "--json"]], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "perbit.cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait() == EXIT_OK


def test_rd_codes_small_tensors_here_as_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    tensors = {"w": rng.normal(size=(300, 300)), "u": rng.normal(size=(20, 20)), "b": rng.normal(size=50)}
    files.write_tensors(Path("u.npz"), {name: x.astype(np.float32) for name, x in tensors.items()})
    assert json.loads(output_of(capsys, "encode", "u.npz", "rd(bits=0.3)", "--json"))["bits_per_value"] <= 0.3


def test_a_delta_on_standard_output_is_nothing_but_the_delta(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for name, value in (("old.npz", 0.0), ("new.npz", 1.0)):
        files.write_tensors(Path(name), {"w": np.full((30, 40), value, np.float32)})
    assert main(["diff", "old.npz", "new.npz", "-o", "-"]) == 0
    Path("d.pbit").write_bytes(capfdbinary.readouterr().out)
    assert main(["apply", "old.npz", "d.pbit", "-o", "again.npz"]) == 0


def test_a_folder_is_no_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is a folder" in complaint_of(capsys, "encode", ".", "raw")
