"""Workers that die, return, come late, are silent for a while, or read a damaged frame: real processes, real SIGKILLs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from elastic_scenarios import Workers
from perbit.outer import elastic


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path)
    yield made
    made.close()


def test_a_model_is_handed_over_where_others_reach_the_worker() -> None:
    """Not at the name of the machine, which others may not know."""
    transport = elastic.HandOver("198.51.100.7", timedelta(seconds=5))
    assert transport.metadata().startswith("http://198.51.100.7:")
    transport.shutdown()
    transport._server.server_close()


@pytest.mark.slow
def test_training_goes_on_and_all_hold_the_same_bits(workers: Workers) -> None:
    workers.start("a", "b", "c")
    workers.until_together("a", "b", "c")

    workers.befall("a", "damage")  # one frame cannot be read by a: its sender does not count in this round, for anybody
    workers.until("a frame is left out", lambda: max(left_out(workers, name) for name in "abc") == 1)
    workers.until_together("a", "b", "c")
    assert sum(left_out(workers, name) for name in "abc") == 1

    workers.signal("c", signal.SIGKILL)  # between rounds, most likely
    workers.until_together("a", "b")
    workers.befall("b", "die")  # within a round: after the frames, before the votes
    workers.until_together("a")
    assert taken_over(workers, "a") <= 1  # at the very beginning: nothing of the survivor's is lost

    workers.start("d")  # comes late
    workers.until_together("a", "d")
    assert taken_over(workers, "d") == 1
    assert workers.rounds("d")[0]["memory_norm"] == 0

    workers.signal("d", signal.SIGSTOP)  # silent, as behind a broken link
    workers.until_together("a")
    workers.signal("d", signal.SIGCONT)
    workers.until_together("a", "d")
    assert taken_over(workers, "d") == 2

    digests: dict[int, set[int]] = {}
    for name in "abcd":
        for row in workers.rounds(name):
            digests.setdefault(row["step"], set()).add(row["digest"])
            assert row["holds_shared"]
    assert len(digests) > 10
    assert [step for step, found in digests.items() if len(found) > 1] == []
    assert len(set.union(*digests.values())) > len(digests) // 2  # the model moves


def left_out(workers: Workers, name: str) -> int:
    return max((row["left_out"] for row in workers.rounds(name)), default=0)


def taken_over(workers: Workers, name: str) -> int:
    return max(row["taken_over"] for row in workers.rounds(name))
