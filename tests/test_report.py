"""The report: one page with everything in it; every plot is there, nothing is fetched, names from files cannot break it."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from perbit.cli import main
from perbit.sim.compare import config, recipe
from perbit.sim.compare.links import Link

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

CONFIG = """
title = "<b>small</b> & sound"
seeds = [0, 1]
[task]
model = "mlp"
clients = 3
rounds = 2
train_samples = 150
test_samples = 100
[[methods]]
name = "float32"
[[methods]]
name = "4 bits <i>"
up = "uniform(4) | rans"
"""
TIMES = [f"accuracy-time-{n}-mbit-s" for n in (1, 25, 100, 1000)]
PLOTS = ["frontier", "accuracy-bytes", "accuracy-rounds", "loss", *TIMES, "gennorm"]
CHARTS = ["frontier", "reach", "time", "training", "layers", "clients", "fits"]


class Page(HTMLParser):
    """Collects what a browser would load, the pictures and charts, and what buttons copy."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.figures: list[str] = []
        self.charts: list[str] = []
        self.tags: list[str] = []
        self.copied: list[str] = []
        self.scripts: dict[str, str] = {}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.loaded += [value for key, value in attrs if key in ("src", "href", "srcset", "xlink:href") and value]
        if tag == "figure":
            self.figures.append((values["id"] or "").removeprefix("picture-"))
        if "data-chart" in values:
            self.charts.append(values["data-chart"] or "")
        if "data-copy" in values:
            self.copied.append(values["data-copy"] or "")
        self.inside = (values.get("id") or "own") if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[self.inside] = self.scripts.get(self.inside, "") + data


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "small.toml").write_text(CONFIG)
    assert main(["compare", str(folder / "small.toml"), "-o", str(folder / "out"), "--processes", "1"]) == 0
    return folder / "out"


def test_the_page_holds_everything(output: Path) -> None:
    text = (output / "report.html").read_text()
    page = Page(text)
    assert page.charts == CHARTS
    assert sorted(page.figures) == sorted(PLOTS)
    assert all(value.startswith(("data:", "#")) for value in page.loaded)  # nothing is fetched
    without = re.sub(r"<svg .*?</svg>|<script.*?</script>", "", text, flags=re.DOTALL)
    assert "http" not in without
    assert page.tags.count("tr") == 3
    assert recipe.toml(config.parse(CONFIG).methods[1]) in page.copied
    assert len(text) < 5_000_000


def test_the_charts_are_drawn_from_what_was_measured(output: Path) -> None:
    page = Page((output / "report.html").read_text())
    data, results = json.loads(page.scripts["data"]), json.loads((output / "results.json").read_text())["runs"]
    assert [method["name"] for method in data["methods"]] == ["float32", "4 bits <i>"]
    for method, runs in zip(data["methods"], (results[:2], results[2:]), strict=True):
        assert method["final"]["accuracy"] == pytest.approx([run["history"][-1]["accuracy"] for run in runs])
        for way in ("up", "down"):
            sent = [run[f"bytes_{way}"] / 1e6 for run in runs]
            assert method["final"][way] == pytest.approx(sent, rel=1e-4)
            assert sum(method["tensors"][way].values()) == pytest.approx(sum(sent) / 2, rel=1e-3)
            assert sum(method["clients"][way]) == pytest.approx(sum(sent) / 2, rel=1e-3)
        at_25 = method["seconds"]["links"][1]
        assert len(at_25) == len(method["rounds"]) == 3
        swept = [seconds[-1] for seconds in method["seconds"]["speeds"]]
        assert swept == sorted(swept, reverse=True)  # a faster link takes less time
        assert swept[data["speeds"].index(25.0)] == pytest.approx(at_25[-1], rel=0.02)
    float32 = summary_of(data["methods"][0])
    assert data["target"] == pytest.approx(float32 - 0.01)


def summary_of(method: dict[str, Any]) -> float:
    return float(sum(method["final"]["accuracy"]) / 2)


def test_the_charting_script_is_the_packages_own(output: Path) -> None:
    packed = Page((output / "report.html").read_text()).scripts["charting"]
    script = gzip.decompress(base64.b64decode(packed)).decode()
    assert script.lstrip().startswith("/**\n* plotly.js v")
    assert "Licensed under the MIT license" in script[:400]


def test_what_was_compared_can_be_copied_whole(output: Path) -> None:
    copied = [text for text in Page((output / "report.html").read_text()).copied if text.startswith("title = ")]
    assert [config.parse(text) for text in copied] == [config.parse(CONFIG)]


def test_the_advice_can_be_copied_whole(output: Path) -> None:
    """Sentence, rule, what it rests on, and the method in three forms: what table.txt says below its table."""
    first = Page((output / "report.html").read_text()).copied[0]
    assert (output / "table.txt").read_text().endswith(f"\n\n{first}")
    for part in ("Use uniform(4) | rans", "The rule: ", "Behind it: 2 seeds", "TOML:", "Flower:", "DDP:"):
        assert part in first


def test_the_frontier_is_that_of_bytes_sent_up(output: Path) -> None:
    """The rule behind the advice counts them, and the way down is the same for most methods."""
    page = (output / "report.html").read_text()
    assert re.findall(r'data-set="way" data-to="(\w+)"', page) == ["up", "down", "total"]
    assert "MB sent up" in page.split('id="picture-frontier"')[1].split("</figure>")[0]


@pytest.mark.parametrize("name", ["demo"])
def test_a_comparison_as_toml_is_the_comparison(name: str) -> None:
    known = config.load(name)
    assert config.parse(recipe.comparison_toml(known)) == known
    slow = replace(known, links=(Link("home", (1.0,) * 10, 5.0, 15.0),))
    assert config.parse(recipe.comparison_toml(slow)) == slow


def test_a_page_without_plotly_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    code = "import sys; sys.modules['plotly'] = None; from perbit.cli import main; raise SystemExit(main(['compare', 'demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "the report needs plotly: pip install perbit[report]" in done.stderr
    assert not (tmp_path / "perbit-runs").exists()


def test_names_are_escaped(output: Path) -> None:
    text = (output / "report.html").read_text()
    assert "<b>small</b>" not in text
    assert "&lt;b&gt;small&lt;/b&gt; &amp; sound" in text
    assert "4 bits <i>" not in text
    assert "4 bits &lt;i&gt;" in text


def test_pictures_are_files_too(output: Path) -> None:
    for name in PLOTS:
        assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_results_are_plain_data(output: Path) -> None:
    results = json.loads((output / "results.json").read_text())
    assert [run["method"]["name"] for run in results["runs"]] == ["float32", "float32", "4 bits <i>", "4 bits <i>"]
    assert results["runs"][0]["history"][0]["round"] == 0
