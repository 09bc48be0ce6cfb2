"""What the README shows is what happens, and what it claims is in the results."""

from __future__ import annotations

import doctest
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "results"


def test_the_readme_session_is_true() -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    failed, tried = doctest.testfile(str(ROOT / "README.md"), module_relative=False, optionflags=flags)
    assert tried > 5
    assert failed == 0


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def runs(name: str, method: str) -> list[dict[str, Any]]:
    """The runs of one method of a comparison, seed by seed."""
    return [run for run in read(f"compare/{name}/results.json")["runs"] if run["method"]["name"] == method]


def accuracies(name: str, method: str) -> list[float]:
    return [100 * run["history"][-1]["accuracy"] for run in runs(name, method)]


def times(name: str, method: str, way: str) -> float:
    """How many times less than float32 a method sent."""
    theirs, ours = (sum(run[f"bytes_{way}"] for run in runs(name, m)) for m in ("float32", method))
    return float(theirs / ours)


def compared(name: str, method: str) -> list[str]:
    """The cells of a comparison: accuracy of float32 and of a method, times less up and down, seeds."""
    found = accuracies(name, "float32"), accuracies(name, method)
    spread = [f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "" for values in found]
    accuracy = " → ".join(f"{statistics.fmean(values):.1f}{sd}" for values, sd in zip(found, spread, strict=True))
    seeds = len(found[1])
    fewer = [f"{times(name, method, way):.0f} ×" for way in ("up", "down")]
    return [f"{accuracy} %", *fewer, str(seeds) if seeds > 1 else "**1**"]


def ddp() -> list[str]:
    rows = {row["method"]: row for row in read("wan_ddp.json")["links"]["25 Mbit/s"]}
    sparse = rows["topk(0.01) | fp16"]
    seconds = f"{rows['float32']['seconds_to_goal']:.0f} s → {sparse['seconds_to_goal']:.0f} s"
    return [seconds, f"{sparse['times_fewer_bytes']:.0f} ×", "", "**1**"]


def flower() -> list[str]:
    found = read("wan_flower.json")
    at = next(row for row in found["summary"] if row["mbit"] == 25)
    seconds = f"{at['seconds_of_float32']:.0f} s → {at['seconds_of_perbit_to_that_accuracy']:.0f} s"

    def middle(method: str, way: str) -> float:
        later = found["runs"]["25"][method][1:]  # the first round brings the model
        return statistics.median(row[f"wire_{way}_bytes"] for row in later)

    fewer = [f"{middle('float32', way) / middle('perbit', way):.0f} ×" for way in ("up", "down")]
    return [seconds, *fewer, "**1**"]


def delta() -> list[str]:
    pair = next(pair for pair in read("diff.json") if pair["pair"] == "bf16")
    return ["", f"{pair['zstd_of_xor'] / pair['delta']:.1f} ×", "", ""]


ROWS = {
    "predicted_both_ways": lambda: compared("feedback", "predicted both ways"),
    "0.2 bits a value": lambda: compared("rd-lenet", "rd, 0.2 bits"),
    "0.12 bits": lambda: compared("rd-lenet", "rd, 0.12 bits"),
    "CNN with batch norm": lambda: compared("cnn", "low rank, predicted"),
    "DDP": ddp,
    "Flower": flower,
    "perbit diff": delta,
}


def claimed() -> list[list[str]]:
    """The rows of the README's table of numbers."""
    table = README.split("## What it is worth, measured\n", 1)[1].split("\n\n", 1)[0]
    lines = table.strip().splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_row_of_the_readme_has_its_results() -> None:
    assert len(claimed()) == len(ROWS)
    for row, name in zip(claimed(), ROWS, strict=True):
        assert name in row[0]


@pytest.mark.parametrize("name", ROWS)
def test_the_numbers_of_the_readme_are_those_of_the_results(name: str) -> None:
    assert next(row[1:] for row in claimed() if name in row[0]) == ROWS[name]()


def test_a_difference_from_float32_is_named_where_the_seeds_show_one() -> None:
    assert "below float32 (p = 0.002)" in README
    assert "Paired over 3 seeds it is below float32 (p = 0.002)" in (RESULTS / "compare/rd-lenet/table.txt").read_text()


def test_the_words_below_the_picture_are_those_of_its_results() -> None:
    said = re.search(r"within ([\d.]+) points of float32 \(dashed\) with (\d+) to (\d+) times fewer bytes", README)
    assert said is not None
    names = {run["method"]["name"] for run in read("compare/rd-lenet/results.json")["runs"]}
    close = [name for name in names if name.startswith(("rd", "low rank"))]
    reference = statistics.fmean(accuracies("rd-lenet", "float32"))
    behind = [reference - statistics.fmean(accuracies("rd-lenet", name)) for name in close]
    fewer = [times("rd-lenet", name, "up") for name in close]
    assert f"{max(behind):.1f}" == said[1]
    assert [f"{min(fewer):.0f}", f"{max(fewer):.0f}"] == [said[2], said[3]]


def test_the_end_of_the_demo_is_that_of_its_results() -> None:
    """Lines of the committed run; of its advice and grounds none is left out."""
    shown = README.split("The demo ends so", 1)[1].split("```\n", 1)[1].split("\n```", 1)[0].splitlines()
    written = (RESULTS / "compare" / "demo" / "table.txt").read_text().splitlines()
    assert [line for line in shown if line not in written] == []
    assert shown[0] == written[0]
    advised = "\n".join(written).split("\n\n")[1].splitlines()
    assert shown[-len(advised) :] == advised


def test_a_servers_memory_is_what_was_measured() -> None:
    said = re.search(r"(\d+) 000 of them cost it at most sixty models and 500 bytes each", README)
    assert said is not None
    measured = [row["models"] for row in read("clients.json") if row["clients"] == 1000 * int(said[1])]
    assert measured
    assert max(measured) <= 60
