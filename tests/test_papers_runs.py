"""The papers' experiments: they decide nothing early, go on from committed results, and measure what they say."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from experiment_scripts import EXPERIMENTS, script
from perbit import cli
from perbit.errors import PerbitError
from perbit.sim.federated.settings import Task
from perbit.sim.verdicts import Claim
from perbit_papers.series import Contest, series


def test_nothing_is_decided_before_all_planned_seeds_have_run() -> None:
    contest = Contest(Claim("a beats b", 0.05), "a", "b")
    runs = [
        {
            "method": name,
            "seed": seed,
            "history": [{"accuracy": 0.5 + 0.2 * (name == "a") + 0.01 * seed * (name == "b")}],
        }
        for name in "ab"
        for seed in range(3)
    ]
    early = contest.judged(runs, planned=5)
    assert early is not None
    assert early.startswith("INCONCLUSIVE")
    assert early.endswith("3 of 5 seeds so far")
    assert str(contest.judged(runs, planned=3)).startswith("REPRODUCED")


def test_a_series_runs_the_methods_of_its_claims_first(tmp_path: Path) -> None:
    made = []

    def one(name: str, seed: int) -> dict[str, object]:
        made.append((name, seed))
        return {"history": [{"accuracy": 0.5}]}

    series(tmp_path / "runs.json", {}, ["x", "a", "b"], [0, 1], one, [Contest(Claim("a beats b"), "a", "b")])
    assert made == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("x", 0), ("x", 1)]


def test_a_series_goes_on_with_a_file_of_before_a_setting_was_added(tmp_path: Path) -> None:
    """And not with one whose settings were others."""
    output = tmp_path / "runs.json"
    settings = asdict(Task(data="digits", rounds=3))
    before = {key: value for key, value in settings.items() if key != "test_share"}
    made = []

    def one(name: str, seed: int) -> dict[str, object]:
        made.append((name, seed))
        return {"history": [{"accuracy": 0.5}]}

    series(output, before, ["a"], [0], one, [])
    series(output, settings, ["a"], [0, 1], one, [])
    assert made == [("a", 0), ("a", 1)]
    for others in ({**settings, "test_share": 0.2}, {**settings, "rounds": 4}):
        with pytest.raises(PerbitError, match="other settings"):
            series(output, others, ["a"], [0, 1], one, [])


def test_a_comparison_goes_on_from_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both seeds of the first method and one of the second are lost but for what was committed: one run is made anew."""
    deep = script("deep.py")
    text = """
title = "small"
seeds = [0, 1]
[task]
data = "digits"
model = "mlp"
clients = 2
rounds = 2
[[methods]]
name = "float32"
[[methods]]
name = "8 bits"
protocol = "fedavg"
up = "uniform(8) | rans"
"""
    (tmp_path / "small.toml").write_text(text)
    monkeypatch.setattr(deep, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(deep, "HERE", tmp_path)
    monkeypatch.setitem(deep.FILES, "small", "small.toml")
    monkeypatch.setitem(
        deep.CLAIMS, "small", [Contest(Claim("8 bits lose at most a point", -0.01), "8 bits", "float32")]
    )
    monkeypatch.setattr(
        deep.subprocess, "run", lambda command, check: cli.main(command[3:])
    )  # no new process each time
    monkeypatch.setattr(deep, "KEPT", ("results.json",))
    deep.compare("small", tmp_path / "first" / "small", "--processes", "1", "--no-report")
    kept = tmp_path / "results" / "compare" / "small"
    whole = json.loads((kept / "results.json").read_text())
    assert len(whole["runs"]) == 4
    assert "of 2 seeds so far" not in (kept / "verdict.txt").read_text()
    assert set(json.loads((kept / "timings.json").read_text())) == {
        "float32-seed0",
        "float32-seed1",
        "8-bits-seed0",
        "8-bits-seed1",
    }
    (kept / "results.json").write_text(json.dumps({**whole, "runs": whole["runs"][:3]}))
    again = tmp_path / "second" / "small"
    deep.restore("small", again)
    assert sorted(folder.name for folder in again.iterdir()) == ["8-bits-seed0", "float32-seed0", "float32-seed1"]
    deep.compare("small", again, "--processes", "1", "--no-report")
    assert json.loads((kept / "results.json").read_text())["runs"] == whole["runs"]
    assert not (again / "float32-seed0" / "ledger.jsonl").exists()  # not trained again
    assert (again / "8-bits-seed1" / "ledger.jsonl").exists()


def test_theorem_9_is_measured_by_what_the_clients_see_together() -> None:
    module = script("mcm/theorem9.py")
    problem = module.synthetic(n_clients=20, seed=0)
    for name in ("MCM", "5 groups", "Rand-MCM"):
        run = module.measured(problem, name, 0, 40)
        assert 0.6 < run["C"] * run["ratio"] < 1.6
        assert name != "MCM" or run["ratio"] == pytest.approx(1)


def test_the_largest_step_separates_convergence_from_divergence() -> None:
    module = script("mcm/largest_step.py")
    problem = module.problem_of(16, 0)
    bound = module.allowed("mcm", problem)
    assert module.converges(problem, "mcm", bound, 0)
    assert not module.converges(problem, "mcm", 8 / problem.smoothness, 0)


def test_both_budgets_of_fig_3_share_their_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same settings and seed only."""
    module = script("m22/fig3.py")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    task, run = asdict(Task(data="digits")), {"method": "float32", "seed": 1, "history": [1], "shapes": []}
    content = json.loads(json.dumps({"settings": {"budget": 664, **task}, "runs": [run]}))
    (tmp_path / "m22_fig3_664.json").write_text(json.dumps(content))
    assert module.other_budgets(task, 996, 1) == {"history": [1], "shapes": []}
    assert module.other_budgets(task, 996, 0) is None
    assert module.other_budgets({**task, "rounds": 7}, 996, 1) is None
    assert module.other_budgets(task, 664, 1) is None


def test_statistics_through_training_are_judged_by_layer_and_epoch(tmp_path: Path) -> None:
    module = script("co3/statistics.py")
    text = """
title = "small"
seeds = [0]
[task]
data = "digits"
model = "mlp"
clients = 1
rounds = 80
local_epochs = 0
batch = 144
server_rate = 0.1
[[methods]]
name = "float32"
protocol = "sgd"
[[methods]]
name = "fp4"
protocol = "co3"
up = "fp(2, 1) | huffman"
decay = 0.7
"""
    (tmp_path / "small.toml").write_text(text)
    cli.main(
        [
            "compare",
            str(tmp_path / "small.toml"),
            "-o",
            str(tmp_path / "runs"),
            "--statistics",
            "--processes",
            "1",
            "--no-report",
        ]
    )
    plain, corrected = (module.recorded(tmp_path / "runs", part) for part in ("g", "g+m"))
    assert set(corrected) == {"1.weight"} < set(plain)  # the second layer is small and goes raw
    assert all(len(lines) == 8 for lines in plain.values())  # 1437 samples, 144 in a round
    assert all("l1_memory" in line for lines in corrected.values() for line in lines)
    found = module.judged(tmp_path / "runs")
    assert len(found["verdicts"]) == 6
    assert "of 2 layers" in found["verdicts"][3]["found"]
    variances = [epoch["variance"] for epoch in found["layers"]["g"]["1.weight"]]
    assert found["verdicts"][3]["agrees"] == (variances[0] > variances[-1])


def test_every_run_of_the_plan_has_its_script_and_its_claims() -> None:
    plan, deep = script("run.py"), script("deep.py")
    names = [run.name for run in plan.PLAN]
    assert len(names) == len(set(names))
    assert all(run.minutes > 0 for run in plan.PLAN)
    for run in plan.PLAN:
        files = [Path(part) for part in run.command[1:] if part.endswith((".py", ".toml"))]
        assert files, run.name
        assert all(file.is_file() for file in files), run.name
        if "deep.py" in str(run.command[1]):
            assert deep.CLAIMS[run.name]
            assert (EXPERIMENTS / deep.FILES[run.name]).is_file()
