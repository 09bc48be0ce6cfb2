"""The pages of the papers say what the results say, and nothing beyond: outcomes that stand there by hand are checked too."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs/papers").glob("*.md")), ROOT / "docs/hundred.md"]
OURS = "I"  # the part of the plan that is no paper's
_SENTENCE = re.compile(r"^- ((?:NOT )?REPRODUCED|INCONCLUSIVE|AGREES|DIFFERS): (.*)$", re.MULTILINE)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """experiments/pages.py as a module, with this repository's results."""
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("experiment_pages", ROOT / "experiments/pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_says_what_the_results_say(path: Path, pages: ModuleType) -> None:
    text = path.read_text("utf-8")
    assert pages.renewed(text) == text, "run `python experiments/pages.py`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_outcome_stands_on_a_page_without_the_result_that_says_so(path: Path, pages: ModuleType) -> None:
    said = "\n".join(_strings_of_all_results())
    for outcome, sentence in _SENTENCE.findall(pages.by_hand(path.read_text("utf-8"))):
        assert f"{outcome}: {sentence}" in said, f"{path.name}: {sentence[:80]}"


def test_no_claim_of_the_table_is_called_reproduced_by_hand(pages: ModuleType) -> None:
    """Nor not run yet: what is a file tomorrow would be so for ever."""
    rows = [line for line in (ROOT / "docs/papers/README.md").read_text("utf-8").splitlines() if line.startswith("|")]
    for row in rows:
        assert not re.search("REPRODUCED|INCONCLUSIVE|not run", pages.by_hand(row)), row


def test_every_run_of_the_plan_is_on_a_page_and_in_the_table(pages: ModuleType) -> None:
    table = pages.marks((ROOT / "docs/papers/README.md").read_text("utf-8"))
    others = [mark for path in PAGES if path.name != "README.md" for mark in pages.marks(path.read_text("utf-8"))]
    for run in pages.PLAN:
        for marks in (others,) if run.part == OURS else (table, others):
            assert any(run.name in mark.partition(";")[0].split() for mark in marks), run.name


def test_every_mark_finds_its_claim(pages: ModuleType) -> None:
    """A mark whose words no sentence has would say "not run yet" of what has run."""
    for mark in (mark for path in PAGES for mark in pages.marks(path.read_text("utf-8"))):
        call, _, text = mark.partition(";")
        what, *names = call.split()
        if what == "outcome" and pages.outcome_of(names[0]).sentences:
            assert pages.outcome(names[0], text.strip()) != pages.NOT_YET, mark


def test_half_a_series_decides_nothing_and_its_end_changes_the_page(
    pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    page = "Helps: <!--= outcome co3-training; helps --><!--/-->, <!--= seeds co3-training --><!--/--> seeds\n"
    assert "helps -->not run yet<" in (empty := _fresh(pages, page))
    assert "co3-training -->none<" in empty
    claim = "error feedback helps: +0.1 ± 0.01"
    _write(f"INCONCLUSIVE: {claim} over 2 pairs, p = 0.01; 2 of 5 seeds so far", 3)
    assert "helps -->INCONCLUSIVE, 2 of 5 seeds so far<" in (half := _fresh(pages, page))
    assert "co3-training -->2<" in half
    assert "co3-training 1.2," in pages.left()  # three fifths of 120 minutes
    _write(f"REPRODUCED: {claim} over 5 pairs, p = 0.01", 5)
    assert "helps -->REPRODUCED<" in (whole := _fresh(pages, half))
    assert "co3-training -->5<" in whole
    assert "co3-training" not in pages.left()
    assert "| float32 | 5 | 52.0 ± 1.6 | 8 | 8 | 32.00 |" in pages.table("co3-training")


def test_claims_that_end_differently_are_not_summed_up_by_one_word(
    pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results/compare/mcm-mnist"
    folder.mkdir(parents=True)
    (folder / "verdict.txt").write_text("REPRODUCED: MCM beats Dore: +1\nNOT REPRODUCED: MCM beats Artemis: -1\n")
    monkeypatch.chdir(tmp_path)
    pages.outcome_of.cache_clear()
    assert pages.outcome("mcm-mnist") == "REPRODUCED (1 of 2 claims), NOT REPRODUCED (1 of 2 claims)"
    assert pages.outcome("mcm-mnist", "Dore") == "REPRODUCED"


def test_the_check_fails_on_an_old_page(pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/papers").mkdir(parents=True)
    page = tmp_path / "docs/papers/co3.md"
    page.write_text("<!--= outcome co3-training -->REPRODUCED<!--/-->")
    (tmp_path / "docs/hundred.md").touch()
    pages.outcome_of.cache_clear()
    monkeypatch.setattr(sys, "argv", ["pages.py", "--check"])
    with pytest.raises(SystemExit, match="pages"):
        pages.main()
    assert "REPRODUCED" in page.read_text()
    monkeypatch.setattr(sys, "argv", ["pages.py"])
    pages.main()
    assert page.read_text() == "<!--= outcome co3-training -->not run yet<!--/-->"


def _fresh(pages: ModuleType, page: str) -> str:
    pages.outcome_of.cache_clear()
    return str(pages.renewed(page))


def _write(sentence: str, n_seeds: int) -> None:
    point = {"bytes_up": 8_000_000, "bytes_down": 8_000_000}
    runs = [
        {"method": "float32", "seed": seed, "history": [{"accuracy": 0.5 + seed / 100, **point}]}
        for seed in range(n_seeds)
    ]
    Path("results/co3_training.json").write_text(json.dumps({"verdicts": [sentence], "runs": runs}))


def _strings_of_all_results() -> list[str]:
    folder = ROOT / "results"
    texts = [path.read_text("utf-8") for path in folder.rglob("*.txt")]
    return texts + [
        text
        for path in folder.rglob("*.json")
        if path.parent.name != "runs"
        for text in _strings(json.loads(path.read_text("utf-8")))
    ]


def _strings(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else []
    return [text for one in inner for text in _strings(one)]
