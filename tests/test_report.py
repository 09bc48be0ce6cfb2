"""The report: one page with everything in it; every plot is there, nothing is fetched, names from files cannot break it."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perbit.cli import main
from perbit.sim.compare import config, recipe

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
PLOTS = ["accuracy-bytes", "accuracy-rounds", *(f"accuracy-time-{n}-mbit-s" for n in (1, 25, 100, 1000)), "gennorm"]
CHROMIUM = shutil.which("chromium")


class Page(HTMLParser):
    """Collects what a browser would load, and the text of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.figures: list[str] = []
        self.tags: list[str] = []
        self.copied: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.loaded += [value for key, value in attrs if key in ("src", "href", "srcset") and value]
        if tag == "figure":
            self.figures.append(values["id"] or "")
        if "data-copy" in values:
            self.copied.append(values["data-copy"] or "")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "small.toml").write_text(CONFIG)
    assert main(["compare", str(folder / "small.toml"), "-o", str(folder / "out"), "--processes", "1"]) == 0
    return folder / "out"


def test_the_page_holds_everything(output: Path) -> None:
    text = (output / "report.html").read_text()
    page = Page(text)
    assert page.figures == PLOTS
    assert len(page.loaded) == 2 * len(PLOTS) + 1  # light and dark, and an icon
    assert all(value.startswith("data:") for value in page.loaded)
    assert "http" not in text.replace("data:image", "")[:20000]
    assert page.tags.count("tr") == 3
    assert recipe.toml(config.parse(CONFIG).methods[1]) in page.copied


def test_names_are_escaped(output: Path) -> None:
    text = (output / "report.html").read_text()
    assert "<b>small</b>" not in text
    assert "&lt;b&gt;small&lt;/b&gt; &amp; sound" in text
    assert "4 bits &lt;i&gt;" in text


def test_pictures_are_files_too(output: Path) -> None:
    for name in PLOTS:
        assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_results_are_plain_data(output: Path) -> None:
    results = json.loads((output / "results.json").read_text())
    assert [run["method"]["name"] for run in results["runs"]] == ["float32", "float32", "4 bits <i>", "4 bits <i>"]
    assert results["runs"][0]["history"][0]["round"] == 0


if CHROMIUM:

    @pytest.mark.slow
    def test_a_browser_shows_it_without_complaint(output: Path, tmp_path: Path) -> None:
        quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        command = [CHROMIUM, *quiet, f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--dump-dom"]
        shown = subprocess.run(
            [*command, (output / "report.html").as_uri()], capture_output=True, text=True, timeout=120
        )
        assert shown.returncode == 0
        assert Page(shown.stdout).figures == PLOTS
        assert "CONSOLE" not in shown.stderr
