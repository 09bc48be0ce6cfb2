"""What the measurements of local steps are turned into: times to a loss, shares of waiting, verdicts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from experiment_scripts import EXPERIMENTS, script


@pytest.fixture(scope="module", autouse=True)
def _paths() -> Iterator[None]:
    """The scripts import their neighbours by name."""
    before = list(sys.path)
    sys.path.insert(0, str(EXPERIMENTS / "outer"))
    yield
    sys.path[:] = before


@pytest.fixture(scope="module")
def wan() -> Any:
    return script("outer/wan.py")


@pytest.fixture(scope="module")
def failures() -> Any:
    return script("outer/failures.py")


def runs_of(wan: Any, seed: int, ours_seconds: float) -> dict[str, Any]:
    """DDP is at 3.0 after half of its steps; float32 takes 7 s a step, DiLoCo 1 s or, with a ring, half of it."""
    half = wan.GOAL_STEP
    return {
        wan.key(wan.PACE, "ddp", 10, seed): {"step_seconds": 7.0},
        wan.key(wan.PACE, "diloco", 10, seed): {"step_seconds": 1.0, "ring_step_seconds": 0.5},
        wan.key(wan.PATH, "ddp", 10, seed): {"curve": [[half - 15, 1.0, 3.5], [half, 2.0, 3.0], [2 * half, 4.0, 2.5]]},
        wan.key(wan.PATH, "diloco", 10, seed): {"curve": [[half, 2.0, 3.1], [half + 15, 2.5, 2.9]]},
        wan.key(wan.RUN, "ours", 10, seed): {"curve": [[half, 1.0, 3.01], [half + 15, ours_seconds, 3.0]]},
    }


def test_times_to_the_goal_are_compared_with_float32_as_it_is_over_the_link(wan: Any) -> None:
    half = wan.GOAL_STEP
    ours = half * 7.0 / 25
    lines = list(wan.verdicts(runs_of(wan, 0, ours), 10, [0, 1]))
    assert f"seconds to a loss of 3.000, that of float32 DDP after {half} steps" in lines[0]
    assert lines[1].split()[:3] == ["ours", f"{ours:.0f}", "s;"]
    assert [line.split(";")[0] for line in lines[-2:]] == ["25.0", f"{(half + 15) * 0.5 / ours:.1f}"]
    assert "INCONCLUSIVE" in lines[-2]  # one seed tells nothing for certain


def test_three_seeds_decide(wan: Any) -> None:
    runs: dict[str, Any] = {}
    for seed, times in enumerate((24, 25, 26)):
        runs |= runs_of(wan, seed, wan.GOAL_STEP * 7.0 / times)
    ddp, ring = list(wan.verdicts(runs, 10, (0, 1, 2)))[-2:]
    assert "; REPRODUCED: times sooner than float32 DDP" in ddp
    assert "; NOT REPRODUCED: times sooner than float32 DiLoCo" in ring


def test_a_method_that_never_gets_there_says_so(wan: Any) -> None:
    assert wan.seconds_to([(15, 1.0, 3.2), (30, 2.0, 2.9), (45, 3.0, 3.1)], 3.0) == 2.0
    assert wan.seconds_to([(15, 1.0, 3.2)], 3.0) is None
    runs = runs_of(wan, 0, 1.0)
    runs[wan.key(wan.RUN, "ours", 10, 0)] = {"curve": [[15, 1.0, 3.2]]}
    lines = list(wan.verdicts(runs, 10, [0]))
    assert "never" in lines[1]
    assert not any("REPRODUCED" in line or "INCONCLUSIVE" in line for line in lines)


def test_a_pace_serves_all_seeds_and_a_path_all_links(wan: Any) -> None:
    plan = list(wan.planned(["ours", "ddp"], [0, 1]))
    assert plan == [("pace", "ddp", 0), ("run", "ours", 0), ("path", "ddp", 0), ("run", "ours", 1), ("path", "ddp", 1)]
    assert wan.key("pace", "ddp", 10, 0) == wan.key("pace", "ddp", 10, 1) != wan.key("pace", "ddp", 25, 0)
    assert wan.key("path", "ddp", 10, 0) == wan.key("path", "ddp", 25, 0) != wan.key("path", "ddp", 10, 1)


def test_streaming_counts_all_standing_still_and_its_rival_the_network_only(wan: Any) -> None:
    row = {"seconds": 10.0, "stalled_seconds": 6.0, "wait_seconds": 4.0}
    assert (wan.share(row, "at once"), wan.share(row, "streaming")) == (0.4, 0.6)
    runs = {f"at once, 25 Mbit/s, seed {seed}": row for seed in range(3)}
    runs |= {f"streaming, 25 Mbit/s, seed {seed}": {**row, "stalled_seconds": 0.5 + seed / 10} for seed in range(3)}
    lines = list(wan.overlap_verdicts(runs, 25, (0, 1, 2)))
    assert lines[1] == "25 Mbit/s, seed 0, streaming: 10.0 s, 5.0% of them waiting"
    assert lines[-1].startswith("REPRODUCED")
    slow = {name: {**found, "stalled_seconds": 2.0} for name, found in runs.items()}
    assert list(wan.overlap_verdicts(slow, 25, (0, 1, 2)))[-1].startswith("NOT REPRODUCED")


def rounds(*rows: tuple[int, int, int, int]) -> list[dict[str, int]]:
    return [dict(zip(("pid", "step", "digest", "taken_over"), row, strict=True)) for row in rows]


def test_all_must_hold_the_same_bits_after_every_round(failures: Any) -> None:
    equal = {"a": rounds((1, 1, 70, 0), (1, 2, 71, 0)), "b": rounds((2, 2, 71, 1))}
    assert failures.differing(equal) == []
    assert failures.differing({**equal, "c": rounds((3, 1, 70, 0), (3, 2, 99, 0))}) == [2]


def test_only_who_is_struck_may_take_over_a_model(failures: Any) -> None:
    assert failures.took_over(rounds((1, 1, 0, 0), (1, 2, 0, 0), (1, 3, 0, 1)))
    assert not failures.took_over(rounds((1, 1, 0, 0), (5, 2, 0, 1), (5, 3, 0, 1)))  # started again
    cut = {"struck": ["a"], "took_over": ["a"]}
    assert failures.unexpected([cut, {"struck": [], "took_over": []}]) == []
    assert failures.unexpected([cut, {"struck": ["a"], "took_over": ["a", "b"]}]) == ["b"]


def test_verdicts_on_failures(failures: Any) -> None:
    ended = {"a": {"digest": 5, "loss": 2.52}, "b": {"digest": 5, "loss": 2.52}}
    run = {"ended": ended, "differing": [], "events": [{"struck": ["a"], "took_over": ["a"]}], "rounds": 40}
    plain = {"ended": {"a": {"loss": 2.5}}}
    assert [line.split(":")[0] for line in failures.verdicts({"disturbed": run, "undisturbed": plain})] == ["holds"] * 3

    bad = {**run, "ended": {**ended, "b": {"digest": 6}}, "events": [{"struck": [], "took_over": ["a"]}]}
    lines = failures.verdicts({"disturbed": bad, "undisturbed": {"ended": {"a": {"loss": 2.4}}}})
    assert [line.split(":")[0] for line in lines] == ["does not hold"] * 3
    lines = failures.verdicts({"disturbed": {**run, "differing": [3]}, "undisturbed": plain})
    assert next(iter(lines)).startswith("does not hold")
