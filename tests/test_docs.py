"""The docs point at what exists, and their tables are those of the code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perbit
from perbit._moved import NEW_NAMES
from perbit.coding import registry
from perbit.sim.compare.config import parse
from perbit.sim.compare.links import Link
from perbit.sim.federated.settings import Method, Task

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "papers" / "README.md", *sorted(DOCS.rglob("*.md"))]
OWN_CODECS = [name for name, codec in registry.classes().items() if codec.wire_id]  # tests register some of their own


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(path: Path) -> set[str]:
    """Where links into a page may point: its headings, as GitHub names them, and anchors of its own."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}, which has no such heading"


def rows(heading: str) -> dict[str, str]:
    """Key and default of the table below a heading of docs/compare.md."""
    text = (DOCS / "compare.md").read_text().split(f"### {heading}\n", 1)[1].split("\n### ", 1)[0]
    table = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", text, flags=re.MULTILINE)
    return {key: default.strip().strip("`") for key, default in table}


def settings(kind: type, hidden: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    for field in fields(kind):
        if field.name not in hidden:
            yield field.name, as_toml(field)


def as_toml(field: Field[Any]) -> str:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if default is MISSING:
        return "required"
    if isinstance(default, bool):
        return str(default).lower()
    return f'"{default}"' if isinstance(default, str) else str(default)


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("`[task]`", dict(settings(Task))),
        ("`[[methods]]`", dict(settings(Method, hidden=("options",)))),
        ("`[[links]]`", dict(settings(Link))),
    ],
)
def test_the_tables_of_settings_are_those_of_the_code(heading: str, expected: dict[str, str]) -> None:
    assert rows(heading) == expected


def test_the_comparison_in_the_docs_can_be_read() -> None:
    shown = re.search(r"```toml\n(.*?)```", (DOCS / "compare.md").read_text(), flags=re.DOTALL)
    assert shown is not None
    assert [method.name for method in parse(shown[1]).methods] == ["float32", "top 1 %", "top K in 100 kbit"]


def test_the_frame_in_the_docs_is_what_is_written() -> None:
    shown = re.search(r"```\n(70 62 69 74.*?)```", (DOCS / "format.md").read_text(), flags=re.DOTALL)
    assert shown is not None
    listed = re.findall(r"^((?:[0-9a-f]{2} )+)", shown[1].replace("  ", " "), flags=re.MULTILINE)
    frame = perbit.encode(np.array([0, 3, 0, -1], np.float32), "topk(0.5) | uniform(2)")
    assert bytes.fromhex("".join(listed)) == frame


def test_every_preset_is_in_the_table_of_presets() -> None:
    table = (DOCS / "protocols.md").read_text().split("## Presets", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)) == set(perbit.presets.PRESETS)


@pytest.mark.parametrize("name", [*perbit.presets.PRESETS, *OWN_CODECS])
def test_every_preset_and_codec_is_in_the_bibliography(name: str) -> None:
    without_source = {"sgd", "raw", "pack", "auto", "gaps", "counted", "raw32"}
    assert name in without_source or f"`{name}`" in (DOCS / "bibliography.md").read_text()


def test_every_module_that_moved_is_listed() -> None:
    text = (DOCS / "versioning.md").read_text()
    assert {f"`{name}`" for pair in NEW_NAMES.items() for name in pair} <= set(re.findall(r"`perbit[\w.]*`", text))


def test_the_tests_that_the_page_on_security_names_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "security.md").read_text()))
    there = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert len(named) > 30
    assert not [name for name in named if f"def {name}(" not in there]


def test_the_codec_reference_is_what_the_codecs_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "codec_reference.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """`make docs`: a link or an anchor that leads nowhere fails the strict build."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    built = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert not [
        page for page in built if not (tmp_path / page.replace("README.md", "index.md")).with_suffix(".html").exists()
    ]
    loaded = r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=[\"']?(https?:[^\"'> ]+)"
    for page in tmp_path.rglob("*.html"):
        assert not re.findall(loaded, page.read_text()), page.name
    texts = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    assert any("error memory" in text["text"] for text in texts)
