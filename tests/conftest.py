"""Asserts in helper modules explain themselves as those in tests do; no test depends on the machine's speed. Ranks for many tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from ranks import Ranks

for helper in ("data_files", "flower_network", "nvflare_federation", "numeric_backends", "session_exchange"):
    pytest.register_assert_rewrite(helper)

settings.register_profile("any speed", deadline=None)
settings.load_profile("any speed")


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    yield from _ranks(2)


@pytest.fixture(scope="module")
def five() -> Iterator[Ranks]:
    yield from _ranks(5)


def _ranks(world: int) -> Iterator[Ranks]:
    from ranks import Ranks  # it imports torch, which most tests do without

    ranks = Ranks(world)
    yield ranks
    ranks.close()
