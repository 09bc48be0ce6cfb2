"""perbit.torch.all_reduce by real processes over gloo: the same bits on every rank, nothing lost, exact resumption."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import averaging_scenarios as scenarios
from perbit.coding.spec import codec
from perbit.torch import Memory
from perbit.torch.collective.buckets import Bucket, CodedParameter
from ranks import Ranks


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", 1e-6), ("float64", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2), ("float8_e5m2", 0.5)],
)
def test_exact_codecs_give_the_mean(two: Ranks, dtype: str, tolerance: float) -> None:
    for result in two.run(scenarios.exact, dtype):
        for came, meant in result.values():
            assert came.dtype == getattr(torch, dtype)
            assert torch.allclose(came.double(), meant, atol=tolerance)


@pytest.mark.parametrize("spec", ["topk(0.1)", "topk(0.1) | qsgd(15) | rans", "rd(bits=0.5)"])
def test_every_rank_gets_the_same_bits_and_nothing_is_lost(two: Ranks, five: Ranks, spec: str) -> None:
    for ranks in (two, five):
        results = ranks.run(scenarios.conservation, spec)
        for result in results:
            assert result["far"] < 1e-4
            assert all(torch.equal(x, results[0]["came"][name]) for name, x in result["came"].items())


def test_rd_spends_its_bits_on_all_tensors_together() -> None:
    """A tensor that is a thousand times smaller gets nothing, and the message as a whole has the bits that were asked for."""
    random = np.random.default_rng(0)
    parts = [random.normal(size=n).astype(np.float32) * scale for n, scale in ((6000, 1.0), (0, 1.0), (6000, 0.001))]
    rd = codec("rd(bits=0.5)")
    starts, shapes = (0, 6000, 6000), ((60, 100), (0, 3), (60, 100))
    parameters = [CodedParameter.of(f"p{i}", shapes[i], rd, True, starts[i]) for i in range(3)]
    bits = []
    for is_whole in (False, True):
        bucket = Bucket(tuple(parameters), is_whole)
        frame, _ = bucket.form_for(parts, 0, 1).encode(parts, [0, 1, 2], 0)
        outs = [np.zeros_like(part) for part in parts]
        bucket.form(0, 1).add(frame, outs, 1.0, 0)
        bits.append(8 * (len(frame) - 9) / 12000)  # without the number of the step and the digest
        assert outs[2].any() != is_whole
        assert outs[0].any()
    assert bits[1] <= 0.5


def test_metrics_are_of_one_call_and_of_all(two: Ranks) -> None:
    result = two.run(scenarios.conservation, "topk(0.1)")[0]
    call, every = result["metrics"], result["all"]
    assert every["step"] == 4
    assert 0 < call["bytes"] < every["total_bytes"]
    assert call["ratio"] == call["dense_bytes"] / call["bytes"] > 3
    assert call["encode_seconds"] > 0
    assert call["exchange_seconds"] >= call["wait_seconds"] > 0
    assert every["memory_norm"] == pytest.approx((every["memory_norms/w"] ** 2 + every["memory_norms/v"] ** 2) ** 0.5)


def test_a_memory_may_fade(two: Ranks) -> None:
    kept = [two.run(scenarios.conservation, "topk(0.1)", decay)[0]["all"]["memory_norm"] for decay in (1.0, 0.5)]
    assert kept[0] > kept[1] > 0


@pytest.mark.parametrize("spec", ["topk(0.05) | qsgd(15) | rans", "lowrank(1) | fp16"])
def test_a_resumed_run_takes_the_same_path(two: Ranks, five: Ranks, spec: str) -> None:
    for ranks in (two, five):
        results = ranks.run(scenarios.resume, spec)
        assert all(uninterrupted == resumed == results[0][0] for uninterrupted, resumed in results)
        assert len(set(results[0][0])) == 8


def test_memories_belong_to_a_rank(two: Ranks) -> None:
    assert all("of 7, loaded by rank" in message for message in two.run(scenarios.wrong_rank))


def test_what_is_not_finite_makes_the_mean_nan_everywhere_once(two: Ranks, five: Ranks) -> None:
    for ranks in (two, five):
        assert all(result == {"nan": True, "finite": True} for result in ranks.run(scenarios.nonfinite))


def test_some_of_the_ranks_may_average(five: Ranks) -> None:
    assert five.run(scenarios.of_a_part) == [[0.5, 0.5], [0.5, 0.5], [2, 2], [3, 3], [4, 4]]


def test_any_layout_will_do(two: Ranks, five: Ranks) -> None:
    assert all(two.run(scenarios.other_layouts) + five.run(scenarios.other_layouts))


def test_what_cannot_be_averaged_is_refused(two: Ranks) -> None:
    for integers, nothing, *spread in two.run(scenarios.refused):
        assert integers == "tensor 'x' is torch.int64; only floats can be averaged"
        assert nothing == "there are no tensors to average"
        assert all("DTensor, spread over several ranks; pass x.to_local()" in message for message in spread)


def test_ranks_that_average_different_tensors_are_told(two: Ranks) -> None:
    assert all("of rank" in message for message in two.run(scenarios.other_shapes_here))


def test_without_a_memory_every_call_draws_anew(two: Ranks) -> None:
    assert all(two.run(scenarios.randomness))


def test_a_group_that_does_not_carry_bytes_gets_one_beside_it(two: Ranks) -> None:
    assert two.run(scenarios.without_cpu) == [(True, 0.5), (True, 0.5)]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Memory(error_feedback=1.5)
