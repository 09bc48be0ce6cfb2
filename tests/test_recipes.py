"""Advice that can be repeated: the method that is printed is the method that was run, as TOML and as Python, with what the advice rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perbit.engines.flower import CompressedGrid
from perbit.sim.compare import config, recipe, search, summary
from perbit.sim.federated.settings import Method

TENSORS = {"a": np.zeros((64, 64), np.float32), "b": np.zeros((100, 64), np.float32)}
METHODS = [
    *config.load("demo").methods,
    *search.candidates(TENSORS, 20_000),
    Method("budget", "co3", "topk(?) | qsgd(15) | rans", small="fp16", budget_bits=100_000, rules={"a*": "fp16"}, options={"decay": 0.5}),
    Method("all", "mcm", "qsgd(7) | rans", "qsgd(3) | rans", "fp16", {"alpha_up": 0.1}, rules={"size:1e4..": "fp16", 'x"y': "bf16"}),
    Method("own", "double_squeeze"),
    Method("whole", "co3", "topk(0.01) | fp16", whole_model=True),
]  # fmt: skip


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
        "Behind it: 3 seeds, each tested on 200 samples: 600 decisions; one sample is 0.50 points of a seed; "
        "standard deviation over seeds: fp16 both ways ± 2.0 points, float32 ± 1.0 points."
    )
    assert said[2] == "Beside 4 bits, the next dearer: 3 seeds do not tell the two apart."


def test_both_neighbours_of_the_recommended_method_are_looked_at() -> None:
    made = rows()
    far = replace(made[1], method=replace(made[1].method, name="far"), mb_up=0.1, accuracy=0.9, finals=(0.9, 0.89, 0.9))
    assert summary.recommended([*made, far]) is made[1]
    said = summary.grounds([*made, far])
    assert said[2].startswith("Beside far, the next cheaper: Paired over 3 seeds it is above far (p = 0.0")
    assert said[3] == "Beside 4 bits, the next dearer: 3 seeds do not tell the two apart."


def test_each_seeds_own_test_part_is_said() -> None:
    made = [replace(row, own_tests=True) for row in rows()]
    assert "3 seeds, each tested on its own part of 200 samples: 600 decisions" in summary.grounds(made)[1]


def test_where_nothing_was_compressed_the_advice_says_so() -> None:
    assert summary.advice(rows()[:1]).startswith("Nothing was compressed: add a method with a spec")


def test_an_own_metric_has_its_own_name_numbers_and_bound() -> None:
    made = [replace(row, metric="mine:bits", accuracy=-2.0 - i / 100) for i, row in enumerate(rows())]
    assert summary.table(made).splitlines()[0].split()[1] == "mine:bits"
    assert "-2.01 against float32's -2" in summary.advice(made)
    assert "at most 1 % below" in summary.grounds(made)[0]
