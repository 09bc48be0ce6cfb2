"""The convex test bed and its command: problems, ledgers, results, and a run that is killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from perbit import cli
from perbit.files import FileError
from perbit.protocols import presets
from perbit_papers.convex import Problem, Settings, checkpoint, load, prepare, run, synthetic
from perbit_papers.convex.run import ConvexProgress

LIBSVM = "+1 1:0.5 3:2\n-1 2:1 # a remark\n\n+1 1:1 2:-1 3:1\n-1 3:0.25\n"


def test_gradients_are_the_derivatives() -> None:
    for kind in ("least_squares", "logistic"):
        problem = synthetic(kind, n_clients=3, n_rows=8, n_features=4)
        w = np.random.default_rng(0).normal(size=4)
        gradient = problem.gradients(np.tile(w, (3, 1))).mean(0)
        for j in range(4):
            step = np.eye(4)[j] * 1e-6
            slope = (problem.loss(w + step) - problem.loss(w - step)) / 2e-6
            assert gradient[j] == pytest.approx(slope, abs=1e-6)
        every_row = np.tile(np.arange(8), (3, 1))
        points = np.tile(w, (3, 1))
        assert np.allclose(problem.gradients(points, every_row), problem.gradients(points))


def test_the_optimum_is_one() -> None:
    for kind in ("least_squares", "logistic"):
        problem = synthetic(kind, n_clients=4, n_rows=50, n_features=5, noise=2.0)
        best = np.tile(problem.optimum, (4, 1))
        assert np.abs(problem.gradients(best).mean(0)).max() < 1e-7
        assert problem.smoothness <= problem.smoothness_frobenius


def test_files_are_read(tmp_path: Path) -> None:
    text = tmp_path / "set.txt"
    text.write_text(LIBSVM)
    x, y = load(text)
    assert x.tolist() == [[0.5, 0, 2], [0, 1, 0], [1, -1, 1], [0, 0, 0.25]]
    assert y.tolist() == [1, -1, 1, -1]
    archive = tmp_path / "set.npz"
    np.savez(archive, indptr=[0, 2, 3, 6, 7], indices=[0, 2, 1, 0, 1, 2, 2], data=x[x != 0], y=y, shape=x.shape)
    assert load(archive)[0].tolist() == x.tolist()
    problem = prepare(x, y, "logistic", n_clients=2)
    assert problem.x.shape == (2, 2, 4)
    assert np.allclose(problem.x.reshape(-1, 4).mean(0), [1, 0, 0, 0])
    split = prepare(x, y, "logistic", n_clients=2, heterogeneous=True)
    assert split.y.tolist() == [[-1, -1], [1, 1]]
    for bad in ("", "1 a:b\n"):
        text.write_text(bad)
        with pytest.raises(FileError, match="cannot read"):
            load(text)
    with pytest.raises(FileError, match="two classes"):
        prepare(x, np.arange(4.0), "logistic", 2)


def test_the_ledger_counts_real_bytes() -> None:
    problem = synthetic(n_clients=3, n_features=6)
    ledger = run(problem, presets.sgd(), Settings(rounds=4, step=0.1))
    assert ledger.counts["bytes_up"].tolist()[:1] == [3 * 55]  # 24 bytes of values, 31 around them
    assert ledger.counts["bytes_down"][0] == 0  # everybody knows the first model
    assert ledger.counts["frames"].tolist() == [3, 6, 6, 6]
    assert ledger.bytes_until(4) == ledger.n_bytes == sum(ledger.counts["bytes_up"]) + sum(ledger.counts["bytes_down"])
    assert 0 < ledger.counts["header_bytes"].sum() < ledger.n_bytes


def test_a_diverging_run_ends_as_such() -> None:
    problem = synthetic(n_clients=3, n_features=6)
    ledger = run(
        problem, presets.model_difference(presets.ONE_LEVEL, presets.ONE_LEVEL), Settings(rounds=400, step=1.0)
    )
    assert ledger.excess[-1] > 1e10
    json.dumps(ledger.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    problem = synthetic(n_clients=3, n_rows=20, n_features=8, heterogeneous=True)
    settings = Settings(rounds=12, step=0.02, batch=4, participation=0.7, average=True)
    protocol = presets.PRESETS[name].make()
    path = tmp_path / "checkpoint.npz"

    def keep(progress: ConvexProgress) -> None:
        if progress.done == 5:
            checkpoint.save(path, progress, {"run": 1})

    whole = run(problem, protocol, settings, after_round=keep).to_json()
    resumed = run(problem, protocol, settings, progress=checkpoint.restore(path, {"run": 1})).to_json()
    assert resumed == whole
    with pytest.raises(FileError, match="another run"):
        checkpoint.restore(path, {"run": 2})


def command(folder: Path, *more: str) -> list[str]:
    options = ["--algorithms", "diana,mcm", "--rounds", "400", "--batch", "4", "--features", "8", "--rows", "30"]
    return [*options, "--clients", "4", "--output", str(folder), "--no-plot", *more]


def test_the_command_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--algorithms",
        "sgd,mcm,rand_mcm",
        "--rounds",
        "30",
        "--clients",
        "3",
        "--features",
        "5",
        "--rows",
        "10",
    ]
    assert cli.main(["convex", *options, "--participation", "0.5", "--step", "theory", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("sgd", "mcm", "rand_mcm", "excess loss", "headers"))
    written = json.loads((tmp_path / "convex.json").read_text())
    assert [result["algorithm"] for result in written["results"]] == ["sgd", "mcm", "rand_mcm"]
    assert len(written["results"][0]["per_round"]["bytes_up"]) == 30
    assert (tmp_path / "convex.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.glob("*.checkpoint.npz"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--algorithms", "nothing"], "there is no protocol 'nothing'"),
        (["--data", "missing.txt"], "no such file"),
        (["--step", "fast"], "the step must be a number"),
        (["--up", "topk("], "expected"),
        (["--clients", "0"], "must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["convex", "--rounds", "2", "--output", str(tmp_path), *options]) == 2
    assert says in capsys.readouterr().err


def test_killed_and_resumed_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert cli.main(["convex", *command(whole)]) == 0
    environment = os.environ | {"PERBIT_CHECKPOINT_SECONDS": "0"}
    arguments = [sys.executable, "-m", "perbit.cli", "convex", *command(broken)]
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (broken / "mcm.checkpoint.npz").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert (broken / "mcm.checkpoint.npz").exists()
    assert not (broken / "convex.json").exists()
    assert cli.main(["convex", *command(broken, "--resume")]) == 0
    assert (broken / "convex.json").read_bytes() == (whole / "convex.json").read_bytes()


def test_problem_is_a_plain_value() -> None:
    assert Problem("least_squares", np.ones((1, 2, 1)), np.ones((1, 2))).n_rows == 2
