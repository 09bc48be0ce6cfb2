"""The numbers in the docs are those of the results."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["docs/rd.md", "docs/choosing.md"])
def test_the_tables_in_the_docs_are_those_of_the_results(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import rd_tables

    text = (ROOT / page).read_text(encoding="utf-8")
    assert page in rd_tables.PAGES
    assert text.count("<!-- table ") == text.count("<!-- end -->") > 0
    assert rd_tables.filled(text) == text, "python benchmarks/rd_tables.py writes them anew"


def test_the_best_of_a_column_is_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import rd_tables

    found = {"bound R(D)": {"0.5": -5.0}, "rd(?)": {"0.5": -4.0}, "lloyd(?)": {"0.5": None}, "sign": {"0.5": -4.5}}
    monkeypatch.setattr(rd_tables, "results", lambda name: {"decibels_at_rates": found})
    page = "before\n<!-- table rates x -->old<!-- end -->\nafter"
    assert rd_tables.filled(page).splitlines() == [
        "before", "<!-- table rates x -->", "", "| dB at bits per value | 0.5 |", "|---|---:|", "| R(D) bound | -5.00 |",
        "| `rd(?)` | -4.00 |", "| `lloyd(?)` |  |", "", "<!-- end -->", "after",
    ]  # fmt: skip  # `sign`, which is not listed, is the best
    found["sign"]["0.5"] = -3.5
    assert "| `rd(?)` | **-4.00** |" in rd_tables.filled(page)
