"""What a federated run is given: torch computes with one thread meanwhile, and with the caller's number of threads again afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from perbit.sim.federated import run, world
from perbit.sim.federated.settings import Method, SettingsError, Task

TASK = Task(rounds=1, clients=2, data="digits", model="mlp", train_samples=40, test_samples=20)


def threads() -> tuple[int, set[int]]:
    """What torch uses, and what the libraries of linear algebra use."""
    return torch.get_num_threads(), {pool["num_threads"] for pool in threadpool_info()}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    gc.collect()  # worlds that other tests failed to build on purpose, still held by their tracebacks
    before = torch.get_num_threads()
    with threadpool_limits(2):
        torch.set_num_threads(2)
        yield
    torch.set_num_threads(before)


def test_a_world_holds_the_threads_only_while_it_is_there() -> None:
    first = world.build(TASK, 0)
    second = world.build(TASK, 1)
    assert threads() == (1, {1})
    del first
    assert threads() == (1, {1})
    del second
    assert threads() == (2, {2})


def test_a_run_gives_the_threads_back(tmp_path: Path) -> None:
    seen = []
    run(TASK, Method("float32"), 0, tmp_path, watch=lambda now, federation: seen.append(threads()))
    assert seen == [(1, {1})]
    assert threads() == (2, {2})


def test_so_does_a_world_that_cannot_be_built() -> None:
    def build() -> None:
        with pytest.raises(SettingsError):
            world.build(replace(TASK, model="test_federated:BatchNormMLP", batch=1), 0)

    build()
    assert threads() == (2, {2})
