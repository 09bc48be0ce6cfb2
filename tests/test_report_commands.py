"""`perbit fit`, `rd` and `budget` from end to end; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import perbit
from perbit import files
from perbit.cli import main
from perbit.gennorm import GenNorm
from perbit.report import rd_model
from perbit.report.fits import fit_tensor
from perbit.report.rd import DEFAULT_SPECS, RateCurve, RatePoint, RateSource, candidates, measure

PNG = b"\x89PNG\r\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "gradient.npz"
    heavy = GenNorm(0.6, 1e-3).sample(20_000, seed=1).astype(np.float32).reshape(100, 200)
    heavy[:, ::4] = 0
    normal = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32)
    np.savez(path, heavy=heavy, normal=normal, dead=np.zeros(100, np.float32), steps=np.array(3))
    return path


def test_fit_prints_a_line_for_every_tensor(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(model)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["tensor", "heavy", "normal", "distances"]
    assert "25.0%" in out[1]
    assert "2 tensors have nothing to fit" in out[-1]


def test_fit_finds_the_shape_and_draws(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "fit.png"
    assert main(["fit", str(model), "--json", "--layer", "h*", "--plot", str(picture), "--method", "mle"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["beta"] == pytest.approx(0.6, rel=0.05)
    assert row["zero_mass"] == pytest.approx(0.25)
    assert row["best_w1"] == row["best_w2"] == "gennorm"
    assert picture.read_bytes().startswith(PNG)


def test_distances_tell_the_families_apart() -> None:
    for beta, best in ((1.0, {"laplace", "gennorm"}), (2.0, {"normal", "gennorm"}), (0.5, {"gennorm"})):
        row = fit_tensor("x", GenNorm.with_std(beta).sample(50_000, seed=3).astype(np.float32))
        assert row is not None
        assert row.best in best
        assert min(row.w1, key=row.w1.__getitem__) in best


def test_rd_measures_draws_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = ["topk(?) | fp16", "uniform(?) | rans", "qsgd(15) | rans"]
    assert main(["rd", "--gennorm", "2", "--n", "5000", "--specs", *specs, "-o", str(tmp_path)]) == 0
    assert "bound R(D)" in capsys.readouterr().out
    result = json.loads((tmp_path / "rd_gennorm_2.json").read_text())
    assert [curve["spec"] for curve in result["curves"]] == specs
    assert (tmp_path / "rd_gennorm_2.png").read_bytes().startswith(PNG)
    bound = result["decibels_at_rates"]["bound R(D)"]
    assert bound["1.0"] == pytest.approx(-6.02, abs=0.05)
    for name, row in result["decibels_at_rates"].items():
        for rate, value in row.items():
            assert value is None or value >= bound[rate] - 0.3, (name, rate)  # 5000 samples, not infinitely many


def test_rd_takes_the_largest_matching_tensor(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rd", str(model), "--specs", "qsgd(15) | rans", "--json"]) == 0
    source = json.loads(capsys.readouterr().out)["source"]
    assert source["name"].startswith("gradient: heavy")
    assert source["zero_mass"] == pytest.approx(0.25)


def test_a_point_is_measured_on_real_bytes() -> None:
    source = RateSource.of("x", np.random.default_rng(0).standard_normal(4000).astype(np.float32))
    point = measure(source, perbit.codec("uniform(8) | rans"), m=2)
    frame = perbit.encode(source.values, "uniform(8) | rans")
    error = np.mean((perbit.decode(frame) - source.values) ** 2) / np.mean(source.values**2)
    assert point.bits_per_value == 8 * len(frame) / 4000
    assert point.mse_db == pytest.approx(10 * np.log10(error), abs=1e-3)


@pytest.mark.parametrize("spec", ["topk(?)", "qsgd(?)", "uniform(?)", "threshold(?)", "topk(k=?)"])
def test_an_open_parameter_takes_about_a_dozen_values(spec: str) -> None:
    source = RateSource.of("x", np.random.default_rng(0).standard_normal(4000).astype(np.float32))
    assert 5 <= len(set(candidates(spec, source))) <= 12


def test_rd_is_measured_first_and_over_steps_that_suit_the_values() -> None:
    """Whatever the unit of the values: from nearly exact to nearly nothing."""
    assert DEFAULT_SPECS[0] == "rd(?)"
    for unit in (1e-6, 1e3):
        source = RateSource.of("x", (unit * np.random.default_rng(0).standard_normal(4000)).astype(np.float32))
        errors = [measure(source, chosen, m=2).mse_db for chosen in candidates("rd(?)", source)]
        assert len(errors) == 24
        assert errors == sorted(errors)
        assert errors[0] < -25
        assert errors[-1] > -0.5


def test_a_curve_tells_the_rate_at_an_error() -> None:
    points = (RatePoint("a", 0.1, -1.0), RatePoint("worse", 0.2, -0.5), RatePoint("b", 0.4, -3.0))
    curve = RateCurve("x", points)
    assert curve.rate_at(-1.0) == pytest.approx(0.1)
    assert curve.rate_at(-2.0) == pytest.approx(0.2)  # the geometric mean
    assert curve.rate_at(-0.5) is None  # of 0.2 bits, but 0.1 bits do better
    assert curve.rate_at(-3.1) is None


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Two large tensors whose values differ in size, and a small one."""
    path, rng = tmp_path / "network.npz", np.random.default_rng(0)
    tensors = {"a": rng.laplace(size=(80, 90)), "b": 0.1 * rng.normal(size=(70, 80)), "bias": np.ones(80)}
    files.write_tensors(path, {name: x.astype(np.float32) for name, x in tensors.items()})
    return path


def peers_of(path: Path, to: Path) -> Path:
    points = [{"qp": qp, "bits_per_value": 2.0**-qp, "db": -10.0 + 3 * qp} for qp in range(4)]
    entry = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "curves": {"plain": points, "optimised": points}}
    to.parent.mkdir(exist_ok=True)
    to.write_text(json.dumps({"codec": "Peer", "recordings": {"any name": entry}}))
    return to


def test_rd_of_a_whole_model_beside_a_peer(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = peers_of(network, tmp_path / "peers.json")
    command = ["rd", str(network), "--whole-model", "--peers", str(peers), "-o", str(tmp_path)]
    assert main([*command, "--specs", "rd(?)", "topk(?) | fp16"]) == 0
    assert "12,800 values in 2 tensors" in capsys.readouterr().out
    result = json.loads((tmp_path / "rd_network.json").read_text())
    assert [curve["spec"] for curve in result["curves"]] == [
        "rd(?)",
        "topk(?) | fp16",
        "Peer, plain",
        "Peer, optimised",
    ]
    assert result["bits_at_decibels"]["Peer, plain"]["-10.0"] == pytest.approx(1.0)
    assert result["bits_at_decibels"]["rd(?)"]["-5.0"] < result["bits_at_decibels"]["topk(?) | fp16"]["-5.0"]
    assert (tmp_path / "rd_network.png").read_bytes().startswith(PNG)


def test_a_point_of_a_model_is_one_message() -> None:
    rng = np.random.default_rng(0)
    tensors = {name: size * rng.normal(size=(60, 100)).astype(np.float32) for name, size in (("a", 1), ("b", 3))}
    source = rd_model.ModelSource.of("x", {**tensors, "small": np.ones(4999, np.float32)})
    point = rd_model.measure(source, perbit.codec("topk(0.1) | fp16"))
    frame = perbit.dumps(tensors, perbit.Plan.of("topk(0.1) | fp16", small=None, whole_model=True), seed=0)
    error = sum(float(((perbit.loads(frame)[name] - x) ** 2).sum()) for name, x in tensors.items())
    energy = sum(float((x**2).sum()) for x in tensors.values())
    assert point.bits_per_value == 8 * len(frame) / 12_000
    assert point.mse_db == pytest.approx(10 * np.log10(error / energy), abs=1e-3)


def test_peers_are_found_by_the_bytes_of_the_file(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["rd", str(network), "--whole-model", "--specs", "sign", "--json"]

    def specs() -> list[str]:
        assert main(command) == 0
        return [curve["spec"] for curve in json.loads(capsys.readouterr().out)["curves"]]

    assert specs() == ["sign"]
    peers_of(network, tmp_path / "results" / "rd_peers.json")
    assert specs() == ["sign", "Peer, plain", "Peer, optimised"]
    np.savez(network, a=np.ones(9000, np.float32))
    assert specs() == ["sign"]
    assert main([*command, "--peers", "results/rd_peers.json"]) == 2
    assert "python benchmarks/rd_peers.py" in capsys.readouterr().err


def test_budget_prints_what_to_paste(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = tmp_path / "out.pbit"
    command = ["budget", str(model), "topk(?) | fp16", "--bits", "40000", "-o", str(frame)]
    assert main(command) == 0
    assert "of the budget" in capsys.readouterr().out
    assert main([*command, "--json", "--force", "--per-tensor", "--small", "raw"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_bytes"] == len(frame.read_bytes()) <= 5000
    assert found["filled"] >= 0.99
    assert found["plan_text"].startswith("Plan.of(")
    assert set(perbit.loads(frame.read_bytes())) == {"heavy", "normal", "dead", "steps"}


@pytest.mark.parametrize(
    ("arguments", "lesson"),
    [
        (["fit", "{file}", "--layer", "conv*"], "it has heavy, normal, dead, steps"),
        (["fit", "{file}", "--layer", "dead"], "no tensor to fit"),
        (["fit", "nowhere.npz"], "no such file"),
        (["fit", "{file}", "--plot", "fit.jpg"], "written as .png"),
        (["rd"], "give a file or --gennorm BETA"),
        (["rd", "{file}", "--gennorm", "1"], "give a file or --gennorm BETA"),
        (["rd", "--gennorm", "0"], "from 0.1 to 10"),
        (["rd", "--gennorm", "1", "--n", "3"], "from 100"),
        (["rd", "{file}", "--layer", "dead"], "all values are zero"),
        (["rd", "--gennorm", "1", "--n", "100", "--specs", "tpk(?)"], "did you mean 'topk'?"),
        (["rd", "--whole-model"], "takes the file of a model"),
        (["rd", "{file}", "--whole-model", "--layer", "dead"], "has any but zeros"),
        (["rd", "{file}", "--peers", "{file}"], "--peers goes with --whole-model"),
        (["rd", "{file}", "--whole-model", "--peers", "{file}"], "holds no points"),
        (["rd", "{file}", "--whole-model", "--peers", "{file}", "--layer", "h*"], "leave --layer out"),
        (["rd", "{file}", "--whole-model", "--peers", "nowhere.json"], "No such file"),
        (["budget", "{file}", "topk(0.1)", "--bits", "1000"], "single '?'"),
        (["budget", "{file}", "topk(?)", "--bits", "10"], "the smallest has"),
        (["budget", "{file}", "uniform(?)", "--bytes", "50", "--per-tensor"], "the smallest has"),
    ],
)
def test_mistakes_are_one_sentence(
    model: Path, arguments: list[str], lesson: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.replace("{file}", str(model)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert lesson in error
    assert error.startswith("perbit: ")
    assert error.count("\n") == 1


def test_a_budget_needs_a_unit(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["budget", str(model), "topk(?)"])
    assert stop.value.code == 2
    assert "--bits --bytes" in capsys.readouterr().err


def test_values_that_are_not_finite_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.npy"
    np.save(path, np.array([1.0, np.nan] * 10, np.float32))
    for command in (["fit", str(path)], ["rd", str(path)], ["budget", str(path), "topk(?)", "--bytes", "100"]):
        assert main(command) == 2
        assert "NaN" in capsys.readouterr().err


def test_pictures_name_the_extra_to_install(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["fit", str(model), "--plot", str(tmp_path / "x.png")]) == 2
    assert "pip install perbit[report]" in capsys.readouterr().err
