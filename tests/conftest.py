"""Asserts in helper modules explain themselves as those in tests do; no test depends on the machine's speed. Ranks for many tests.

Triton interprets its kernels: tests of device kernels need no GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from ranks import Ranks

os.environ.setdefault(
    "TRITON_INTERPRET", "1"
)  # before anything imports triton, here or in a process that a test starts
collect_ignore_glob = [] if sys.platform == "linux" else ["test_device_*.py"]  # there is no Triton elsewhere

for helper in ("data_files", "flower_network", "nvflare_federation", "numeric_backends", "session_exchange"):
    pytest.register_assert_rewrite(helper)

settings.register_profile("any speed", deadline=None)
settings.load_profile("any speed")


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    yield from _ranks(2)


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    yield from _ranks(4)


@pytest.fixture(scope="module")
def five() -> Iterator[Ranks]:
    yield from _ranks(5)


def _ranks(world: int) -> Iterator[Ranks]:
    from ranks import Ranks  # it imports torch, which most tests do without

    ranks = Ranks(world)
    yield ranks
    ranks.close()
