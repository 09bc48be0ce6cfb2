"""A rank that hangs: the others raise after the timeout of the user's process group. Every test breaks its group, so it has its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import ddp_scenarios
import fsdp_scenarios
from ranks import Ranks

SHORT = timedelta(seconds=3)


@pytest.fixture
def impatient() -> Iterator[Ranks]:
    ranks = Ranks(2, timeout=SHORT)
    yield ranks
    ranks.close()


@pytest.fixture
def patient() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("steps_before", [0, 2])
def test_ddp_waits_as_long_as_the_process_group(impatient: Ranks, tmp_path: Path, steps_before: int) -> None:
    error, _ = impatient.run(ddp_scenarios.hanging, str(tmp_path / "store"), steps_before)
    assert "time" in (error or "").lower()


def test_ddp_waits_as_long_as_it_is_told(patient: Ranks, tmp_path: Path) -> None:
    error, _ = patient.run(ddp_scenarios.hanging, str(tmp_path / "store"), 2, SHORT)
    assert "time" in (error or "").lower()


def test_fsdp_waits_as_long_as_the_process_group(impatient: Ranks, tmp_path: Path) -> None:
    error, _ = impatient.run(fsdp_scenarios.hanging, str(tmp_path / "store"))
    assert "time" in (error or "").lower()
