"""What an install runs is pinned: every package by version and hash, for the platform that is tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PINS = sorted((ROOT / "requirements").glob("*/*.txt"))
PINNED = re.compile(r"([\w.-]+)==[\w.+!]+ --hash=sha256:[0-9a-f]{64}")
UNLOCKED = {"torch"}  # of which every place has a build of its own


def names_in(path: Path) -> set[str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert not [line for line in lines if not PINNED.fullmatch(line)]
    return {PINNED.fullmatch(line)[1].lower().replace("_", "-") for line in lines}  # type: ignore[index]


def wanted(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", text)[0].lower().replace("_", "-") for text in requirements} - UNLOCKED


@pytest.mark.parametrize("path", PINS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_line_has_a_version_and_a_hash(path: Path) -> None:
    assert names_in(path)


@pytest.mark.parametrize("folder", sorted({path.parent for path in PINS}), ids=lambda path: path.name)
def test_nothing_that_is_needed_is_left_open(folder: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert wanted(project["build-system"]["requires"]) <= names_in(folder / "build.txt")
    assert wanted(project["project"]["dependencies"]) <= names_in(folder / "run.txt")


def test_the_tested_install_takes_pinned_files_only() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes --no-deps" in makefile
    assert PINS
