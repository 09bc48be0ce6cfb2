"""DDP with coded gradients, by real processes over gloo: the same bits on every rank, exact resumption, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ddp_scenarios as scenarios
from perbit.coding.bits import Piece
from perbit.coding.codec import Codec, as_pipeline
from perbit.coding.families.formats import Raw
from perbit.coding.spec import codec
from perbit.coding.values import Shape, size
from perbit.engines import fsdp
from perbit.engines.ddp import State
from perbit.errors import SpecError
from perbit.plan import Budget, Chooser, Plan
from perbit.torch.collective.buckets import Bucket, BucketGradients, CodedParameter, ShardBucket, piece_shape
from perbit.torch.collective.coding import cuts
from perbit.torch.collective.reduction import Gathered, Reduction, Sharded
from perbit.torch.feedback import Memories, decay
from ranks import Ranks

# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["topk(0.01)", "qsgd(15) | rans"])
def test_two_ranks_have_the_same_bits_for_200_steps(two: Ranks, spec: str) -> None:
    first, second = two.run(scenarios.train, spec, 200)
    assert first["checksums"] == second["checksums"]
    assert len(set(first["checksums"])) == 200
    assert first["memory"] == (["1.weight", "3.weight"] if "topk" in spec else [])  # 960 values and biases go raw
    assert first["dense"] / first["sent"] > 5


def test_five_ranks_have_the_same_bits_by_owned_pieces(five: Ranks) -> None:
    results = five.run(scenarios.train, "topk(0.05) | fp16", 25)
    assert all(result["checksums"] == results[0]["checksums"] for result in results)
    assert len(set(results[0]["checksums"])) == 25
    assert results[0]["dense"] / results[0]["sent"] > 3


@pytest.mark.parametrize("spec", ["topk(0.02) | fp16", "qsgd(7) | rans", "lowrank(1) | fp16"])
def test_a_resumed_run_takes_the_same_path(two: Ranks, spec: str) -> None:
    for uninterrupted, resumed in two.run(scenarios.resume, spec, 6, 6):
        assert uninterrupted == resumed


@pytest.mark.parametrize("spec", ["topk(0.05)", "lowrank(1)"])
def test_a_resumed_run_takes_the_same_path_by_owned_pieces(five: Ranks, spec: str) -> None:
    for uninterrupted, resumed in five.run(scenarios.resume, spec, 3, 3):
        assert uninterrupted == resumed


def test_a_checkpoint_from_before_searches_were_recalled_is_loaded(two: Ranks) -> None:
    for recalled, then in two.run(scenarios.load_without_recall, "lowrank(1) | fp16"):
        assert recalled == ["1.weight/0", "3.weight/0"]
        assert len(set(then)) == 2


def test_a_state_can_be_pickled_without_its_group(two: Ranks) -> None:
    for uninterrupted, resumed in two.run(scenarios.pickled, "topk(0.02)"):
        assert uninterrupted == resumed


def test_error_memories_belong_to_a_rank(two: Ranks) -> None:
    first, _ = two.run(scenarios.load_from_other_rank, "topk(0.02)")
    assert "state of rank 1 of 2, loaded by rank 0 of 2" in first


def test_accuracy_is_that_of_plain_training(two: Ranks) -> None:
    plain = two.run(scenarios.train, None, 200)[0]["accuracy"]
    coded = two.run(scenarios.train, "topk(0.05) | fp16", 200)[0]["accuracy"]
    assert plain > 0.9
    assert coded > plain - 0.03


# --- gradients we choose ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["topk(0.1)", "topk(0.1) | qsgd(15) | rans"])
def test_error_feedback_loses_nothing(two: Ranks, five: Ranks, spec: str) -> None:
    for ranks in (two, five):
        for far in ranks.run(scenarios.conservation, spec, 4):
            assert max(far.values()) < 1e-5


def test_gradients_accumulate_without_synchronization(two: Ranks) -> None:
    for coded, plain in two.run(scenarios.accumulation):
        for name in plain:
            assert torch.allclose(coded[name], plain[name], atol=1e-6)


def test_the_memory_of_an_unused_parameter_waits(two: Ranks) -> None:
    first, second = two.run(scenarios.unused_parameters)
    assert not np.array_equal(first["kept"][0], first["kept"][1])
    assert np.array_equal(second["kept"][0], second["kept"][1])  # rank 1 did not use it in the second step
    assert np.array_equal(first["kept"][1], first["kept"][2])  # nobody did in the third
    assert torch.equal(first["gradients"][1], second["gradients"][1])
    assert first["gradients"][2] is None


@pytest.mark.parametrize("spec", ["topk(0.1)", "qsgd(7) | rans", "raw"])
def test_empty_tensors_pass(two: Ranks, spec: str) -> None:
    first, second = two.run(scenarios.empty_tensor, spec)
    assert first["nothing"].shape == (0, 5)
    assert torch.equal(first["w"], second["w"])
    assert first["w"].count_nonzero() > 0


def test_empty_tensors_pass_by_owned_pieces(five: Ranks) -> None:
    results = five.run(scenarios.empty_tensor, "topk(0.1)")
    assert all(torch.equal(result["w"], results[0]["w"]) for result in results)


@pytest.mark.parametrize(("name", "tolerance"), [("float64", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_other_floats_are_coded_as_float32(two: Ranks, name: str, tolerance: float) -> None:
    for came, meant in two.run(scenarios.dtype, name):
        assert torch.allclose(came, meant, atol=tolerance)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_gradient_that_is_not_finite_makes_the_mean_nan_everywhere_once(two: Ranks, value: float) -> None:
    first, second = two.run(scenarios.nonfinite, value)
    assert first["finite"] == second["finite"] == [(True, False), (False, True), (True, False)]
    assert np.array_equal(second["kept"][0], second["kept"][1])  # the rank at fault: as before the step
    assert np.isfinite(first["kept"][1]).all()
    assert not np.array_equal(first["kept"][0], first["kept"][1])  # the other keeps what it had to send


def test_a_gradient_that_is_not_finite_by_owned_pieces(five: Ranks) -> None:
    for result in five.run(scenarios.nonfinite, float("nan")):
        assert result["finite"] == [(True, False), (False, True), (True, False)]
        assert all(np.isfinite(kept).all() for kept in result["kept"])


def test_ranks_that_are_not_at_the_same_step_are_told(two: Ranks) -> None:
    first, second = two.run(scenarios.out_of_step)
    assert "another rank is at step 1, this one at 0" in first
    assert "another rank is at step 0, this one at 1" in second


def test_metrics_are_of_one_step_and_of_all(two: Ranks, five: Ranks) -> None:
    for ranks in (two, five):
        first, second, third = ranks.run(scenarios.metrics_of_steps, "topk(0.05)")[0]
        assert (first["step"], second["step"], third["step"]) == (1, 2, 3)
        assert third["total_bytes"] == first["bytes"] + second["bytes"] + third["bytes"]
        assert third["dense_bytes"] == first["dense_bytes"] > 0
        assert third["ratio"] == third["dense_bytes"] / third["bytes"] > 1
        assert third["encode_seconds"] > 0
        assert third["exchange_seconds"] >= third["wait_seconds"] > 0
        assert third["memory_norm"] > third["memory_norms/1.weight"] > 0


def test_sparse_gradients_are_refused_with_advice(two: Ranks) -> None:
    assert all("use sparse=False" in message for message in two.run(scenarios.sparse_embedding))


def test_backward_goes_on_while_buckets_travel(two: Ranks, tmp_path: Path) -> None:
    assert two.run(scenarios.overlap, str(tmp_path / "store")) == [True, True]


def test_messages_of_changing_lengths(two: Ranks, five: Ranks) -> None:
    random = np.random.default_rng(0)
    for ranks in (two, five):
        lengths = random.integers(0, 40, (12, len(ranks.pipes))) ** 2
        assert all(ranks.run(scenarios.gathered_lengths, [[0] * len(ranks.pipes), *lengths.tolist()]))


# --- without processes -----------------------------------------------------------------------------------------------


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        State("topk(0.01)", error_feedback=1.5)
    with pytest.raises(SpecError, match="got int"):
        State(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", [Plan.of("topk(0.01)", whole_model=True), Budget.of("topk(?)", n_bits=80_000)])
@pytest.mark.parametrize("state", [State, fsdp.State])
def test_plans_that_need_the_whole_model_are_refused(state: type[State] | type[fsdp.State], plan: Chooser) -> None:
    with pytest.raises(ValueError, match="a Budget or a plan with whole_model=True chooses codecs by the values"):
        state(plan)


def test_any_other_chooser_will_do() -> None:
    @dataclass(frozen=True)
    class Alternating(Chooser):
        """A codec for every tensor with an even number of values."""

        looks_at_values = False

        def codec_for(self, name: str, shape: Shape, dtype: str = "float32") -> Codec:
            return self.default if size(shape) % 2 == 0 else Raw()

        def codecs(self, tensors: Mapping[str, Any], seed: int | None = 0) -> dict[str, Codec]:
            return {name: self.codec_for(name, x.shape) for name, x in tensors.items()}

    chooser = Alternating(codec("fp16"))
    assert State(chooser).plan is chooser
    assert fsdp.State(chooser).plan is chooser


@pytest.mark.parametrize(
    ("spec", "given", "expected"),
    [
        ("topk(0.01)", True, 1.0), ("topk(0.01)", False, None), ("topk(0.01)", 0.7, 0.7), ("raw", 0.7, None),
        ("qsgd(1) | rans", True, None), ("qsgd(1) | rans", 0.1, 0.1), ("topk(0.1) | qsgd(1)", True, 1.0),
    ],
)  # fmt: skip
def test_biased_codecs_have_a_memory(spec: str, given: bool | float, expected: float | None) -> None:
    assert decay(given, as_pipeline(codec(spec)), 1000) == expected


@given(st.integers(0, 1000), st.integers(1, 20))
def test_cuts_cover_everything_evenly(n: int, pieces: int) -> None:
    bounds = list(cuts(n, pieces))
    assert [at for lo, hi in bounds for at in range(lo, hi)] == list(range(n))
    lengths = [hi - lo for lo, hi in bounds]
    assert max(lengths) - min(lengths) <= 1


class Meeting:
    """The groups of ranks that are threads: each puts its messages on the table, then takes what is meant for it."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=60)
        self.table: list[Any] = [None] * world
        self.groups = [MeetingGroup(self, rank, world) for rank in range(world)]

    def pass_round(self, rank: int, value: Any) -> list[Any]:
        self.table[rank] = value
        self.barrier.wait()
        seen = list(self.table)
        self.barrier.wait()
        return seen


class MeetingGroup:
    def __init__(self, meeting: Meeting, rank: int, world: int) -> None:
        self.meeting, self.rank, self.world = meeting, rank, world

    def gather(self, message: Piece, channel: int) -> list[Piece]:
        return self.meeting.pass_round(self.rank, message)

    def exchange(self, messages: list[Piece]) -> list[Piece]:
        seen = self.meeting.pass_round(self.rank, messages)
        return [b"" if rank == self.rank else seen[rank][self.rank] for rank in range(self.world)]


def reduce_together(
    kind: type[Reduction], parameters: tuple[CodedParameter, ...], values: list[Any]
) -> tuple[list[Any], list[Memories]]:
    """One step of several ranks."""
    meeting = Meeting(len(values))
    memories = [Memories() for _ in values]
    bucket = Bucket(parameters)
    gradients = [BucketGradients(bucket, mine.copy(), step=3, index=0) for mine in values]

    def work(rank: int) -> None:
        reduction = kind(meeting.groups[rank], memories[rank], seed=1)  # type: ignore[arg-type]
        reduction.finish(gradients[rank], reduction.encode(gradients[rank]))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(values))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [mean.values for mean in gradients], memories


@settings(deadline=None, max_examples=30)
@given(
    kind=st.sampled_from([Gathered, Sharded]),
    spec=st.sampled_from(["topk(0.2)", "topk(0.3) | qsgd(7) | rans", "raw", "sign"]),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    world=st.integers(2, 6),
    seed=st.integers(0, 1000),
)
def test_every_rank_gets_the_same_mean_and_memories_hold_the_rest(
    kind: type[Reduction], spec: str, sizes: list[int], world: int, seed: int
) -> None:
    chosen, ends = as_pipeline(codec(spec)), np.cumsum([0, *sizes]).tolist()
    gamma = None if spec == "raw" else 1.0
    parameters = tuple(CodedParameter(f"p{i}", (n,), chosen, gamma, ends[i], ends[i + 1]) for i, n in enumerate(sizes))
    gradients = [np.random.default_rng((seed, rank)).normal(size=ends[-1]).astype(np.float32) for rank in range(world)]
    means, memories = reduce_together(kind, parameters, gradients)
    assert all(mean.tobytes() == means[0].tobytes() for mean in means)
    total = means[0].astype(np.float64)
    for parameter in parameters:
        for rank, kept in enumerate(memories):
            memory = kept.of(parameter.name, parameter.n).astype(np.float64)
            lo, hi = list(cuts(memory.size, world))[rank]
            if kind is Sharded:
                memory[lo:hi] *= world
            total[parameter.start : parameter.stop] += memory / world
    assert np.allclose(total, np.mean(gradients, axis=0), atol=1e-5)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 5))
def test_pieces_cover_every_value_and_every_memory_once(sizes: list[int], pieces: int) -> None:
    ends = np.cumsum([0, *sizes]).tolist()
    raw = as_pipeline(codec("raw"))
    parameters = tuple(CodedParameter(f"p{i}", (n,), raw, 1.0, ends[i], ends[i + 1]) for i, n in enumerate(sizes))
    for bucket, n_values in ((Bucket(parameters), ends[-1]), (ShardBucket(parameters), pieces * ends[-1])):
        values = [at for piece in range(pieces) for lo, hi in bucket.in_values(piece, pieces) for at in range(lo, hi)]
        assert sorted(values) == list(range(n_values))
        for index, parameter in enumerate(parameters):
            bounds = [bucket.in_parameter(piece, pieces)[index] for piece in range(pieces)]
            assert [at for lo, hi in bounds for at in range(lo, hi)] == list(
                range(bucket.memory_size(parameter, pieces))
            )


@given(st.lists(st.integers(0, 9), min_size=0, max_size=3), st.integers(1, 6))
def test_a_piece_of_a_matrix_is_some_of_its_rows(shape: list[int], pieces: int) -> None:
    found = [piece_shape(tuple(shape), piece, pieces) for piece in range(pieces)]
    assert sum(map(size, found)) == size(tuple(shape))
    if len(shape) > 1 and shape[0] >= pieces:
        assert sum(rows for rows, *_ in found) == shape[0]
        assert all(columns == shape[1:] for _, *columns in found)


def test_low_rank_is_low_rank_in_pieces_too() -> None:
    matrix = CodedParameter.of("w", (300, 100), codec("lowrank(2) | fp16"), True, 0)
    values = np.random.default_rng(0).normal(size=30_000).astype(np.float32)
    for piece, rows in enumerate((60, 60, 60, 60, 60)):
        (lo, hi) = Bucket((matrix,)).in_values(piece, 5)[0]
        frame, _ = Bucket((matrix,)).form(piece, 5).encode([values[lo:hi]], [piece], 0)
        assert len(frame) < 2 * 2 * (rows + 100) + 100
