"""benchmarks/rd_peers.py and benchmarks/rd.py, against a stand-in for NNCodec whose rates and errors are known."""

from __future__ import annotations

import json
import math
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import perbit

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def compress(
    tensors: dict[str, np.ndarray], qp_per_tensor: dict[str, int], qp_density: int, **others: Any
) -> bytearray:
    """Rounding to multiples of a step; `lambda_scale` widens the dead zone."""
    steps = 1 << qp_density
    names, (qp,) = list(tensors), set(map(int, qp_per_tensor.values()))
    step = (steps + qp % steps) * 2.0 ** (qp // steps) / steps
    dead = 0.5 + 0.1 * others["lambda_scale"]
    scaled = [np.concatenate([tensors[name].ravel() for name in names]) / step]
    levels = np.sign(scaled[0]) * np.floor(np.abs(scaled[0]) + 1 - dead)
    head = json.dumps({"step": step, "shapes": {name: tensors[name].shape for name in names}})
    return bytearray(head.encode() + b"\n" + zlib.compress(levels.astype(np.int16).tobytes()))


def decompress(frame: bytearray) -> dict[str, np.ndarray]:
    head, _, body = bytes(frame).partition(b"\n")
    facts = json.loads(head)
    values = np.frombuffer(zlib.decompress(body), np.int16) * facts["step"]
    cuts = np.cumsum([math.prod(shape) for shape in facts["shapes"].values()])[:-1]
    pieces = np.split(values.astype(np.float32), cuts)
    return {name: piece.reshape(shape) for (name, shape), piece in zip(facts["shapes"].items(), pieces, strict=True)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with one recording, the current folder, and a codec under NNCodec's name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERBIT_DATA", str(tmp_path))
    package, module = ModuleType("nncodec"), ModuleType("nncodec.nnc")
    package.nnc, module.compress, module.decompress = module, compress, decompress  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nncodec", package)
    monkeypatch.setitem(sys.modules, "nncodec.nnc", module)
    rng = np.random.default_rng(0)
    tensors = {"a.weight": rng.laplace(size=(80, 100)), "b": rng.laplace(size=6000), "small": np.ones(4999)}
    (tmp_path / "gradients").mkdir()
    np.savez(tmp_path / "gradients" / "toy.npz", **{name: x.astype(np.float32) for name, x in tensors.items()})
    return tmp_path


def run(module: ModuleType, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version", lambda package: "2.1.3", raising=False)
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    module.main()


def test_the_points_are_those_of_the_codec(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rd_peers

    run(rd_peers, "toy", "--repeats", "1", monkeypatch=monkeypatch)
    found = json.loads((folder / "results" / "rd_peers.json").read_text())
    toy = found["recordings"]["toy"]
    assert found["version"] == "2.1.3"
    assert (toy["values"], toy["tensors"]) == (14_000, 2)  # the tensor of 4999 values does not count
    tensors = rd_peers.large_tensors(folder / "gradients" / "toy.npz")
    for mode, curve in toy["curves"].items():
        errors, bits = ([p[key] for p in curve] for key in ("db", "bits_per_value"))
        assert errors == sorted(errors)
        assert bits[0] > 3
        assert errors[-1] > -0.3
        assert max(np.diff(errors)) < 1
        middle = curve[len(curve) // 2]
        frame = compress(tensors, {"a": middle["qp"]}, 3, lambda_scale=rd_peers.LAMBDA[mode])
        decoded = decompress(frame)
        error = sum(float(((decoded[name] - x) ** 2).sum()) for name, x in tensors.items())
        assert middle["bytes"] == len(frame)
        assert middle["bits_per_value"] == 8 * len(frame) / 14_000
        assert middle["db"] == pytest.approx(
            10 * math.log10(error / sum(float((x**2).sum()) for x in tensors.values())), abs=1e-3
        )


def test_speeds_are_measured_at_the_same_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rd_speed

    np.savez(folder / "other.npz", w=np.random.default_rng(1).normal(size=9000).astype(np.float32))
    for recording in ("toy", str(folder / "other.npz"), "toy"):
        run(rd_speed, recording, "--repeats", "1", monkeypatch=monkeypatch)
    found = json.loads((folder / "results" / "rd_speed.json").read_text())
    assert [row["recording"] for row in found["rows"]] == ["other"] * 2 + ["toy"] * 2
    for row, target in zip(found["rows"], (-13, -5) * 2, strict=True):
        assert row["db"] == pytest.approx(target, abs=0.6)
        assert 0.3 < row["bytes_by_peer"] < 1.2
        assert min(row["encode_times_peer"], row["decode_times_peer"], row["encode_by_bits_times_peer"]) > 0


def test_measured_recordings_stay_unless_the_settings_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rd_peers

    np.savez(folder / "other.npz", w=np.random.default_rng(1).normal(size=9000).astype(np.float32))
    results = folder / "results" / "rd_peers.json"
    run(rd_peers, "toy", "--repeats", "1", monkeypatch=monkeypatch)
    run(rd_peers, str(folder / "other.npz"), "--repeats", "1", monkeypatch=monkeypatch)
    assert list(json.loads(results.read_text())["recordings"]) == ["other", "toy"]
    monkeypatch.setitem(rd_peers.LAMBDA, "optimised", 0.5)
    run(rd_peers, "toy", "--repeats", "1", monkeypatch=monkeypatch)
    assert list(json.loads(results.read_text())["recordings"]) == ["toy"]


def test_without_nncodec_a_sentence_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rd_peers

    monkeypatch.setitem(sys.modules, "nncodec", None)
    with pytest.raises(SystemExit, match=r"pip install --no-deps nncodec==2\.1\.3"):
        run(rd_peers, "toy", monkeypatch=monkeypatch)


@pytest.mark.parametrize("live", [True, False])
def test_the_table_compares_at_equal_errors(live: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rd
    import rd_peers

    run(rd_peers, "toy", "--repeats", "1", monkeypatch=monkeypatch)
    if not live:
        monkeypatch.setitem(sys.modules, "nncodec", None)
    run(rd, "--spec", "threshold(?) | fp16", "--repeats", "1", monkeypatch=monkeypatch)
    found = json.loads((folder / "results" / "rd.json").read_text())
    assert found["peer_speed"].startswith("measured in this run" if live else "from results/rd_peers.json")
    tensors = rd_peers.large_tensors(folder / "gradients" / "toy.npz")
    assert [row["db"] for row in found["rows"]] == list(rd.TARGETS["gradient"])
    for row in found["rows"]:
        frame = perbit.dumps(tensors, perbit.Plan.of(f"threshold({row['knob']:.6g}) | fp16", small=None))
        assert rd_peers.decibels(tensors, perbit.loads(frame)) == pytest.approx(row["db"], abs=0.05)
        assert 8 * len(frame) / 14_000 == pytest.approx(row["bits_per_value"], rel=0.01)
        for mode in rd_peers.LAMBDA:
            ratio = row["bits_per_value"] / row[f"{mode}_bits_per_value"]
            assert row[f"bytes_by_{mode}"] == pytest.approx(ratio)
            assert row[f"encode_speed_by_{mode}"] > 0
    assert found["largest_bytes_by_plain"] == max(row["bytes_by_plain"] for row in found["rows"])


def test_an_error_that_cannot_be_reached_has_no_ratio(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rd
    import rd_peers

    run(rd_peers, "toy", "--repeats", "1", monkeypatch=monkeypatch)
    run(rd, "--spec", "threshold(?) | sign", "--repeats", "1", monkeypatch=monkeypatch)
    rows = json.loads((folder / "results" / "rd.json").read_text())["rows"]
    assert ["bytes_by_plain" in row for row in rows] == [False, False, True, True]


def test_where_the_error_jumps_the_better_frame_counts(folder: Path) -> None:
    import rd
    import rd_peers

    tensors = rd_peers.large_tensors(folder / "gradients" / "toy.npz")

    def encode(tensors: dict[str, np.ndarray], knob: float) -> bytes:
        return perbit.dumps(tensors, perbit.Plan.of("uniform(4)" if knob < 3 else "threshold(1000) | fp16", small=None))

    found = rd.at_error(tensors, encode, -5.0, {})
    assert found.n_bytes == len(encode(tensors, 1))
    assert found.db < -10


def test_a_recording_made_anew_needs_new_points(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rd
    import rd_peers

    run(rd_peers, "toy", "--repeats", "1", monkeypatch=monkeypatch)
    np.savez(folder / "gradients" / "toy.npz", w=np.ones(9000, np.float32))
    with pytest.raises(SystemExit, match=r"no points of this toy\.npz: python benchmarks/rd_peers\.py toy"):
        run(rd, "--spec", "threshold(?) | fp16", monkeypatch=monkeypatch)


def test_bytes_between_two_points() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import rd

    curve = [{"db": -10.0, "bytes": 400}, {"db": -5.0, "bytes": 100}]
    assert rd.peer_bytes(curve, -7.5) == pytest.approx(200)
    with pytest.raises(ValueError, match=r"-12\.0 dB is outside"):
        rd.peer_bytes(curve, -12.0)
    half = rd.between(rd.Point(0.5, 400, -10.0), rd.Point(2.0, 100, -5.0), -7.5)
    assert (half.knob, half.n_bytes) == (pytest.approx(1.0), pytest.approx(200))
