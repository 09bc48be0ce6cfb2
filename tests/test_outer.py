"""Local steps with an outer optimizer, by real processes over gloo."""

from __future__ import annotations

import numpy as np
import pytest

import outer_scenarios as scenarios
import perbit
import perbit.outer
from ranks import Ranks


def test_the_outer_optimizer_is_nesterovs_and_every_rank_has_its_result(two: Ranks) -> None:
    """Rank 0 moves by -1, rank 1 by -2: the mean pseudo-gradient is 1.5."""
    shared, momentum, expected = 0.0, 0.0, []
    for _ in range(4):
        momentum = 0.9 * momentum + 1.5
        shared -= 0.7 * (1.5 + 0.9 * momentum)
        expected.append(shared)
    for rank, result in enumerate(two.run(scenarios.by_hand, 4)):
        assert result["w"] == pytest.approx(expected, rel=1e-5)
        assert result["mean"] == 2.0  # buffers of floats: all begin with those of rank 0, and are averaged
        assert (result["frozen"], result["count"]) == (rank, rank)  # these stay as they were


@pytest.mark.parametrize("world", ["two", "five"])
def test_ranks_part_and_meet_again(request: pytest.FixtureRequest, world: str) -> None:
    ranks = request.getfixturevalue(world)
    results = ranks.run(scenarios.train, {"spec": "topk(0.1) | qsgd(15) | rans", "every": 4}, 12)
    for number in range(12):
        digests = {result["digests"][number] for result in results}
        assert len(digests) == (1 if number % 4 == 3 else len(results))


@pytest.mark.parametrize(
    ("name", "changes", "at_least"),
    [
        ("local_sgd", {}, 0.9),
        ("diloco", {"every": 10}, 0.9),
        ("diloco_int4", {"every": 10, "delay": 1}, 6),
        ("sparseloco", {"every": 10}, 10),
        ("rd", {"every": 10}, 200),
    ],
)
def test_every_preset_learns_digits(two: Ranks, name: str, changes: dict[str, int], at_least: float) -> None:
    first, second = two.run(scenarios.train, {"name": name, **changes}, 240)
    shares_what_it_holds = name not in ("diloco_int4", "rd")  # the others' own models stay apart from what is shared
    assert (first["digests"][-1] == second["digests"][-1]) == shares_what_it_holds
    assert first["shared"] == second["shared"]
    assert first["accuracy"] > 0.88
    assert first["metrics"]["total_ratio"] > at_least
    exchanges = 240 // changes.get("every", 8) * (4 if name == "diloco_int4" else 1)
    assert exchanges - (name == "diloco_int4") <= first["metrics"]["step"] <= exchanges  # the last one may be under way


def test_frames_of_sparseloco_are_smaller_than_its_own_form() -> None:
    """The paper's wire: 12 bits for the position and 2 for the value of each of 64 in 4096. Here the whole frame is counted."""
    spec = perbit.outer.PRESETS["sparseloco"].spec
    x = np.random.default_rng(0).standard_t(4, 1 << 19).astype(np.float32)
    frame = perbit.encode(x, spec)
    kept = np.count_nonzero(perbit.decode(frame))
    assert kept == 64 * (1 << 19) // 4096
    assert 8 * len(frame) * 1.45 <= (12 + 2) * kept


def test_a_model_of_bfloat16_has_a_shared_model_of_float32(two: Ranks) -> None:
    options = {"spec": "topk(0.1)", "every": 4}
    first, second = two.run(scenarios.train, options, 40, "bfloat16")
    assert first["digests"][-1] == second["digests"][-1]
    assert first["digests"][-2] != second["digests"][-2]


@pytest.mark.parametrize("before", [8, 10])
def test_a_resumed_run_takes_the_same_path(two: Ranks, before: int) -> None:
    """Saved at the end of a round, and in the middle of one."""
    for uninterrupted, resumed in two.run(scenarios.resume, {"name": "sparseloco", "every": 4}, before, 8):
        assert uninterrupted == resumed
    for uninterrupted, resumed in two.run(scenarios.resume, {"name": "rd", "every": 4}, before, 8):
        assert uninterrupted == resumed
    streaming = {"name": "diloco_int4", "every": 8, "fragments": 2, "delay": 3}  # saved with a fragment under way
    for uninterrupted, resumed in two.run(scenarios.resume, streaming, before, 8):
        assert uninterrupted == resumed


def test_fragments_take_turns_and_arrive_late(two: Ranks) -> None:
    """Ranks move both tensors by -1 and -2 a step; "a" leaves after steps 2, 6, "b" after 4, 8; both arrive one step later."""
    for rank, (a, b, shared) in enumerate(two.run(scenarios.streaming)):
        step = rank + 1
        assert a[:2] == [-step, -2 * step]
        assert a[2] == 0.5 * -3 * step + 0.5 * -3.0  # half of its own three steps, half of the mean of two: -3
        assert b[:4] == [-step, -2 * step, -3 * step, -4 * step]
        assert b[4] == 0.5 * -5 * step + 0.5 * -6.0
        assert shared == [-3.0, -6.0]


def test_training_goes_on_while_a_fragment_travels(two: Ranks) -> None:
    first, second = two.run(scenarios.overlapped)
    assert first == second


def test_what_could_not_be_sent_stays_in_the_workers_own_model(two: Ranks) -> None:
    """By hand: half of what waits counts. In the third round the other half of the values is the larger one, with 1 + .75 for each rank."""
    for rank, result in enumerate(two.run(scenarios.apart)):
        step = rank + 1
        assert result["shared"] == [(-6.0, 0.0), (-12.0, 0.0), (-12.0, -1.75 * 1.5)]
        assert result["own"] == [(-6.0, -0.5 * step), (-12.0, -0.75 * step), (-12.0, -1.75 * 1.5)]


@pytest.mark.parametrize("apart", [False, True])
def test_a_round_with_a_model_that_is_not_finite_is_skipped(two: Ranks, apart: bool) -> None:
    first, second = two.run(scenarios.diverged, apart)
    assert first == second
    assert first["skipped"] == 1
    assert first["sums"][0] == first["sums"][1] < first["sums"][2]


def test_what_does_not_fit_is_refused(two: Ranks) -> None:
    for spec, every, model, world, zero, frozen, name, setting, times, share, parts, unkept, late in two.run(
        scenarios.refused
    ):
        assert "made with spec" in spec
        assert every == "the checkpoint was made with every 3, this run has 4"
        assert model == "the checkpoint is of another model"
        assert "of 9, loaded by rank" in world
        assert "at least 1, got 0" in zero
        assert "no parameter that needs a gradient" in frozen
        assert "there is no preset 'dilocco'; there are local_sgd, diloco, diloco_int4, sparseloco, rd" in name
        assert "a preset has no setting 'evry'" in setting
        assert "delay must be below 5" in times
        assert "0 where there is no delay" in share
        assert "fragments must be 1 to 6" in parts
        assert "give error_feedback too" in unkept
        assert "needs delay=0" in late
