"""The fuzzer's own judgement: what is a finding and what is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attacks.build import sealed
from fuzzing import worker
from fuzzing.mutations import MAX_FRAME, seeds

FRAME = sealed(seeds()[0])


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> worker.Worker:
    """A worker for which a frame may take a twentieth of a second."""
    (tmp_path / "slot").write_bytes(bytes(MAX_FRAME + 1024))
    monkeypatch.setattr(worker, "MAX_SECONDS", 0.05)
    made = worker.Worker(worker.Slot(tmp_path / "slot"), 0, sanitized=False)
    made.start = 1 << 62  # memory is not what this is about
    return made


def reads_by(action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("read_once", "read_in_every_way"):
        monkeypatch.setattr(worker, name, lambda frame, back_ends: action() and None)


def work() -> None:
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass


def test_a_frame_that_waits_for_the_processor_is_not_slow(one: worker.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    reads_by(lambda: time.sleep(0.3), monkeypatch)
    one.take(FRAME)


def test_a_frame_that_keeps_the_processor_busy_is_a_finding(
    one: worker.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads_by(work, monkeypatch)
    with pytest.raises(worker.Finding, match="of the processor"):
        one.take(FRAME)


def test_the_slowest_frame_is_kept(one: worker.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_SECONDS", 60)
    reads_by(work, monkeypatch)
    one.take(FRAME)
    reads_by(lambda: None, monkeypatch)
    one.take(FRAME[:-1])
    assert one.slowest_frame == FRAME
