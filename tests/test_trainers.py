"""Trainers of other packages with one line more, by two real processes over gloo, and what DDP can be combined with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trainer_scenarios as scenarios
from ranks import Ranks


def check(results: list[dict[str, Any]]) -> None:
    first, second = results
    assert first["checksum"] == second["checksum"]
    assert first["ratio"] > 40
    assert len(first["memory"]) == 3
    assert len(first["losses"]) == scenarios.STEPS
    assert sum(first["losses"][-3:]) < sum(first["losses"][:3])


def test_accelerate(two: Ranks) -> None:
    check(two.run(scenarios.with_accelerate))


def test_lightning(two: Ranks) -> None:
    check(two.run(scenarios.with_lightning))


def test_the_trainer_of_transformers(two: Ranks, tmp_path: Path) -> None:
    results = two.run(scenarios.with_transformers, str(tmp_path))
    check(results)
    for result in results:
        assert result["resumed"] == result["checksum"]  # memories are part of the checkpoint
    assert results[0]["logged"][-1] == pytest.approx(results[0]["ratio"], rel=0.01)


@pytest.mark.parametrize("how", ["static_graph", "unused", "zero", "compiled inside", "compiled outside"])
def test_ddp_takes_the_same_path_with(two: Ranks, plain_path: list[int], how: str) -> None:
    first, second = two.run(scenarios.checksums, how)
    assert first == second
    if not how.startswith("compiled"):  # compilers may add in another order
        assert first == plain_path


@pytest.fixture(scope="module")
def plain_path(two: Ranks) -> list[int]:
    return two.run(scenarios.checksums, "plainly")[0]


def test_memories_follow_a_loss_scaler(two: Ranks) -> None:
    for far, scales in two.run(scenarios.scaled):
        assert far < 1e-5
        assert len(set(scales)) > 2


def test_a_model_that_is_not_distributed_is_refused(two: Ranks) -> None:
    assert all(
        "expected a DistributedDataParallel, got Sequential" in text for text in two.run(scenarios.not_distributed)
    )
