"""Advice that can be repeated: the method that is printed is the method that was run, as TOML and as Python, with what the advice rests on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perbit.cli import main
from perbit.engines.flower import CompressedGrid
from perbit.sim.compare import config, recipe, search, summary
from perbit.sim.federated.settings import Method

METHODS = [
    *config.load("demo").methods,
    *search.candidates(),
    Method("budget", "co3", "topk(?) | qsgd(15) | rans", small="fp16", budget_bits=100_000, rules={"a*": "fp16"}, options={"decay": 0.5}),
    Method("all", "mcm", "qsgd(7) | rans", "qsgd(3) | rans", "fp16", {"alpha_up": 0.1}, rules={"size:1e4..": "fp16", 'x"y': "bf16"}),
    Method("own", "double_squeeze"),
    Method("whole", "co3", "topk(0.01) | fp16", whole_model=True),
]  # fmt: skip

MODULE = """
import torch
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(6, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
"""
COMPARISON = """
seeds = [0, 1]
[task]
data = "./recipe_data.npz"
model = "recipe_net:Net"
partition = "natural"
clients = 3
rounds = 3
[[methods]]
name = "float32"
[[methods]]
name = "sparse"
protocol = "co3"
decay = 0.9
up = "topk(?) | qsgd(7) | rans"
small = "fp16"
budget_bits = 22000
rules = { "2.weight" = "fp16" }
"""


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_table_to_copy_is_the_method(method: Method) -> None:
    assert config.parse(recipe.toml(method)).methods[0] == method


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_python_for_flower_makes_the_same_protocol(method: Method) -> None:
    made: dict[str, Any] = {}
    exec(recipe.flower(method), made)
    assert made["protocol"] == method.make()
    assert CompressedGrid(object(), protocol=made["protocol"], absent="ignored").session is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_python_for_ddp_has_the_codecs_and_the_feedback_or_says_why_not(method: Method) -> None:
    code = recipe.ddp(method)
    if code.startswith("# "):
        assert method.budget_bits or method.whole_model or method.protocol == "mcm"
        return
    made: dict[str, Any] = {}
    exec(code.split("state =")[0], made)
    assert made["plan"] == method._plan(method.up_text, method.rules)
    assert f"error_feedback={method.options.get('decay', method.protocol == 'double_squeeze')}" in code.replace(
        "=False", "=False"
    )


def test_a_new_users_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Own data and model, a comparison, the printed method copied into a second one: the same accuracy and bytes to the last digit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "recipe_net", raising=False)
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=150)
    x = (np.eye(3, 6)[y] + rng.normal(size=(150, 6))).astype(np.float32)
    np.savez("recipe_data.npz", x=x, y=y, client=np.arange(150) % 3)
    Path("recipe_net.py").write_text(MODULE)
    Path("first.toml").write_text(COMPARISON)
    assert main(["compare", "first.toml", "--processes", "1", "--no-report"]) == 0
    out = capsys.readouterr().out
    assert "Results: " in out
    table = Path("perbit-runs/first/table.txt").read_text()
    assert table in out
    printed = table.split("TOML:\n\n")[1].split("\n\nFlower:")[0]
    head = COMPARISON.split("[[methods]]")[0]
    Path("second.toml").write_text(f'{head}[[methods]]\nname = "float32"\n{printed}\n')
    assert main(["compare", "second.toml", "--processes", "1", "--no-report"]) == 0
    first, second = (
        json.loads(Path(f"perbit-runs/{name}/results.json").read_text())["runs"] for name in ("first", "second")
    )
    assert first == second
    page = (tmp_path / "perbit-runs" / "first" / "table.txt").read_text()
    assert "budget_bits = 22000" in page
    assert "Budget.of('topk(?) | qsgd(7) | rans', {'2.weight': 'fp16'}, small='fp16', n_bits=22000)" in page


def rows() -> list[summary.Row]:
    float32, *others = config.load("demo").methods
    common = (10.0, 32.0, 50.0, 0.1, 0.1, False)
    made = [summary.Row(float32, 0.95, 0.01, 10.0, *common, (0.94, 0.95, 0.96), "", 200)]
    for method, mb in zip(others[:2], (0.2, 0.3), strict=True):
        made.append(summary.Row(method, 0.945, 0.02, mb, *common, (0.96, 0.93, 0.945), "", 200))
    return made


def test_the_rule_and_the_uncertainty_stand_beside_the_advice() -> None:
    said = summary.grounds(rows())
    assert said[0].startswith(
        "The rule: of the compressed methods whose mean accuracy is at most a point below float32's"
    )
    assert said[1] == (
        "Behind it: 3 seeds of 200 test samples, so one sample is 0.50 points; "
        "standard deviation over seeds: fp16 both ways ± 2.0 points, float32 ± 1.0 points."
    )
    assert said[2] == "Beside 4 bits, the next cheapest that is close: 3 seeds do not tell the two apart."


def test_an_own_metric_has_its_own_name_numbers_and_bound() -> None:
    made = [replace(row, metric="mine:bits", accuracy=-2.0 - i / 100) for i, row in enumerate(rows())]
    assert summary.table(made).splitlines()[0].split()[1] == "mine:bits"
    assert "-2.01 against float32's -2" in summary.advice(made)
    assert "at most 1 % below" in summary.grounds(made)[0]
