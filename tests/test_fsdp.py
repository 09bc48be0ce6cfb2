"""FSDP2 with coded gradients and parameters, by real processes over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fsdp_scenarios as scenarios
from perbit import Plan
from ranks import Ranks


def test_exact_codecs_give_what_fsdp_gives(two: Ranks) -> None:
    plain, coded = two.run(scenarios.train, None, 10), two.run(scenarios.train, "raw", 10)
    assert coded[0]["losses"] == pytest.approx(plain[0]["losses"], rel=1e-5)
    assert coded[0]["checksum"] == coded[1]["checksum"]


def test_training_with_fewer_bytes_reaches_the_accuracy_of_plain_training(two: Ranks) -> None:
    plain = two.run(scenarios.train, None, 120)[0]
    first, second = two.run(scenarios.train, "topk(0.05) | fp16", 120)
    assert first["checksum"] == second["checksum"]
    assert plain["accuracy"] > 0.9
    assert first["accuracy"] > plain["accuracy"] - 0.03
    assert first["ratio"] > 9  # biases and the last layer, 5 % of the values, go raw
    assert first["modules"] == ["", "1", "3"]


@pytest.mark.parametrize("spec", ["topk(0.05) | qsgd(15) | rans", "lowrank(1) | fp16"])
def test_a_resumed_run_takes_the_same_path(two: Ranks, spec: str) -> None:
    for uninterrupted, resumed in two.run(scenarios.resume, spec):
        assert uninterrupted == resumed


def test_metrics_are_of_one_step_and_of_all(two: Ranks) -> None:
    for first, second, third in two.run(scenarios.metrics_of_steps, "topk(0.05)"):
        assert (first["step"], second["step"], third["step"]) == (1, 2, 3)
        assert third["total_bytes"] == first["bytes"] + second["bytes"] + third["bytes"]
        assert third["dense_bytes"] == first["dense_bytes"] > 0
        assert third["exchange_seconds"] >= third["wait_seconds"] > 0
        assert third["memory_norm"] > third["memory_norms/1.weight"] > 0


@pytest.mark.parametrize("spec", ["topk(0.1)", "topk(0.1) | qsgd(15) | rans"])
def test_error_feedback_keeps_what_was_not_sent(two: Ranks, spec: str) -> None:
    for far in two.run(scenarios.conservation, spec):
        assert max(far.values()) < 1e-5


def test_a_bare_spec_is_for_large_parameters_and_the_others_go_raw(two: Ranks) -> None:
    for came in two.run(scenarios.first_step, "topk(0.01)", ["matrix", "bias", "other"]):
        assert came["bias"] < 1e-6
        assert min(came["matrix"], came["other"]) > 1e-3


def test_rules_go_by_the_names_of_parameters(two: Ranks) -> None:
    plan = Plan.of("topk(0.01)", rules={"other": "raw"})
    for came in two.run(scenarios.first_step, plan, ["matrix", "bias", "other"]):
        assert came["other"] < 1e-6
        assert came["matrix"] > 1e-3


def test_where_a_parameter_got_no_gradient_the_others_are_coded_together(two: Ranks) -> None:
    for came in two.run(scenarios.first_step, "raw", ["bias", "other"]):
        assert sorted(came) == ["bias", "other"]
        assert max(came.values()) < 1e-6
    for came in two.run(scenarios.first_step, "topk(0.01)", ["bias", "matrix"]):
        assert min(came.values()) > 1e-3
    for came in two.run(scenarios.first_step, "topk(0.01)", ["bias", "matrix"], True):
        assert came["bias"] < 1e-6


def test_parameters_may_be_frozen_later(two: Ranks) -> None:
    assert two.run(scenarios.frozen) == [["bias", "matrix"], ["bias", "matrix"]]


def test_a_gradient_that_is_not_finite_is_nan_on_every_rank_once(two: Ranks) -> None:
    assert two.run(scenarios.nonfinite) == [[True, False, True], [True, False, True]]


def test_a_model_that_is_not_sharded_is_refused(two: Ranks) -> None:
    assert all("call fully_shard first" in message for message in two.run(scenarios.not_sharded))


# --- parameters, both ways -------------------------------------------------------------------------------------------

BOTH = {"parameters": "uniform(4) | rans"}


def test_training_both_ways_reaches_the_accuracy_of_plain_training(two: Ranks) -> None:
    plain = two.run(scenarios.train, None, 120)[0]
    first, second = two.run(scenarios.train, "topk(0.05) | fp16", 120, BOTH)
    assert first["checksum"] == second["checksum"]
    assert first["copies"] == second["copies"]
    assert first["accuracy"] > plain["accuracy"] - 0.03
    assert first["parameter_ratio"] > 4
    metrics = first["metrics"]
    assert metrics["parameter_total_ratio"] == first["parameter_ratio"]
    assert metrics["parameter_bytes"] > 0
    assert metrics["parameter_wait_seconds"] > 0


def test_four_ranks_have_the_same_bits_both_ways(four: Ranks) -> None:
    results = four.run(scenarios.train, "topk(0.05) | fp16", 20, BOTH)
    assert all(r["checksum"] == results[0]["checksum"] and r["copies"] == results[0]["copies"] for r in results)


def test_exact_codecs_of_parameters_give_what_fsdp_gives(two: Ranks) -> None:
    plain, coded = two.run(scenarios.train, None, 10)[0], two.run(scenarios.train, None, 10, {"parameters": "raw"})[0]
    assert coded["losses"] == plain["losses"]


def test_a_run_resumed_both_ways_takes_the_same_path(two: Ranks) -> None:
    for uninterrupted, resumed in two.run(scenarios.resume_both_ways):
        assert uninterrupted == resumed


def test_what_ranks_hold_follows_the_parameters(two: Ranks) -> None:
    for far in two.run(scenarios.parameters_followed):
        assert far["matrix"] < 1e-3  # about seven times closer with every frame
        assert far["bias"] == 0
        assert far["unchanged"] == 8
        assert far["loaded"] == 0  # other parameters altogether: these travel as they are


def test_backward_goes_on_while_gradients_travel(two: Ranks, tmp_path: Path) -> None:
    assert two.run(scenarios.overlap, str(tmp_path / "store")) == [True, True]


# --- how FSDP was set up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_gradients_are_divided_by_the_factor_of_the_user(two: Ranks, factor: float) -> None:
    assert max(two.run(scenarios.divided, factor)) < 1e-5


def test_gradients_are_added_to_those_of_passes_before(two: Ranks) -> None:
    assert max(two.run(scenarios.divided, 2.0, "raw", 3)) < 1e-5


@pytest.mark.parametrize(("dtype", "far"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_gradients_may_be_reduced_in_another_dtype(two: Ranks, dtype: torch.dtype, far: float) -> None:
    assert max(two.run(scenarios.reduced_in, dtype)) < far


def test_between_replicas_only_that_hop_is_coded(four: Ranks) -> None:
    results = four.run(scenarios.replicated, "topk(0.05)")
    assert max(max(result["far"].values()) for result in results) < 1e-5
    assert len({result["checksum"] for result in results}) == 1
    assert min(result["ratio"] for result in results) > 5


def test_modules_that_are_sharded_together_keep_their_names(two: Ranks) -> None:
    for came in two.run(scenarios.grouped):
        assert came["bias"] < 1e-6  # raw, as it is small
        assert min(came["matrix"], came["other"]) > 1e-3


def test_something_must_be_coded(two: Ranks) -> None:
    assert all("nothing to code" in message for message in two.run(scenarios.nothing_to_code))
