"""Budgets: the texts' count of bits and its inverse, the open parameter of a spec, frames that fill what they may use."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import perbit
from perbit.channels import Direct, ErrorFeedback
from perbit.errors import BudgetError, SpecError
from perbit.plan.budget import Budget, _search
from perbit.plan.plan import Plan
from perbit.plan.template import Template, whole_numbers
from perbit_papers import counts


@pytest.fixture(scope="module")
def model() -> dict[str, np.ndarray]:
    """Layers of very different scale, a bias, a name that looks like a pattern, and a counter."""
    rng = np.random.default_rng(0)
    return {
        "conv[0].weight": rng.laplace(scale=0.1, size=(32, 3, 3, 3)).astype(np.float32),
        "conv1.weight": rng.laplace(scale=0.01, size=(64, 32, 3, 3)).astype(np.float32),
        "fc.weight": (rng.standard_normal((64, 256)) * 0.003).astype(np.float32),
        "fc.bias": rng.standard_normal(64).astype(np.float32),
        "steps": np.array([7]),
    }


# --- the texts' equation ---------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.data())
def test_topk_bits_is_exact(d: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, d))
    rate = data.draw(st.floats(0, 16))
    assert counts.topk_bits(d, k, rate) == pytest.approx(math.log2(math.comb(d, k)) + k * rate, abs=1e-9)


@given(st.integers(1, 60), st.floats(0, 500), st.sampled_from([0.5, 1, 2, 3, 8, 16]))
def test_solve_k_is_the_largest_on_the_rising_side_or_everything(d: int, n_bits: float, rate: float) -> None:
    cost = [counts.topk_bits(d, k, rate) for k in range(d + 1)]
    k = counts.solve_k(d, n_bits, rate)
    assert cost[k] <= n_bits + 1e-9
    peak = int(np.argmax(cost))
    assert k == d or all(cost[j] > n_bits - 1e-9 for j in range(k + 1, peak + 1))
    assert (k == d) == (d * rate <= n_bits)


def test_the_listed_k_of_the_texts_leave_out_the_positions() -> None:
    cost = [counts.topk_bits(552_874, k, p) for k, p in ((250_000, 2), (31_250, 16), (62_500, 8))]
    assert [round(bits / 1e6, 3) for bits in cost] == [1.049, 0.673, 0.781]


@pytest.mark.parametrize("arguments", [(10, -1, 2), (10, 1, -2)])
def test_negative_budgets_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="not negative"):
        counts.solve_k(*arguments)


# --- templates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["patterns(?)", "fitpoly(bits=?)"])
def test_a_parameter_that_takes_single_numbers_cannot_be_open(text: str) -> None:
    with pytest.raises(SpecError, match="must be"):
        Template(text).axis(1000)


@pytest.mark.parametrize(
    ("text", "parameter", "low", "high"),
    [
        ("topk(?) | fp16", "ratio", 1e-3, 1.0),
        ("topk(ratio=?)", "ratio", 1e-3, 1.0),
        ("topk(k=?) | fp16", "k", 1, 1000),
        ("uniform(?) | rans", "bits", 1, 12),
        ("topk(0.1) | uniform(bits=?)", "bits", 1, 12),
        ("qsgd(15, bucket=?, norm=max)", "bucket", 0, 1000),
        ("threshold(?)", "level", 1e-6, 1e3),
        ("patterns(256, ?)", "bits", 9, 16),
    ],
)
def test_the_open_parameter_and_its_range(text: str, parameter: str, low: float, high: float) -> None:
    template = Template(text)
    axis = template.axis(1000)
    assert template.parameter == axis.name == parameter
    assert axis.value(0) == pytest.approx(low)
    assert axis.value(axis.count - 1) == pytest.approx(high)
    values = [axis.value(i) for i in range(0, axis.count, max(1, axis.count // 50))]
    assert values == sorted(values)
    for value in values:
        assert perbit.codec(str(template.fill(value))) == template.fill(value)


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        ("topk(0.1)", "single '?'"),
        ("topk(?) | qsgd(?)", "has 2"),
        ("topk(?", "expected ',' or '\\)'"),
        ("tpk(?)", "did you mean 'topk'"),
        ("?", "expected a codec's name"),
    ],
)
def test_a_template_has_one_hole(text: str, lesson: str) -> None:
    with pytest.raises(SpecError, match=lesson):
        Template(text)


@pytest.mark.parametrize("spec", ["topk(?)", "topk(0.1) | uniform(bits=?)", "topk(k=?) | fp16"])
def test_an_open_spec_is_no_codec_and_says_what_to_do(spec: str) -> None:
    with pytest.raises(SpecError, match=r"leaves \w+ open; perbit\.fit_budget"):
        perbit.codec(spec)


# --- real frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", [20_000, 60_000])
@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("spec", ["topk(?) | fp16", "topk(?) | uniform(4) | rans", "topk(k=?) | qsgd(15) | rans"])
def test_frames_fill_their_budget(model: dict[str, np.ndarray], spec: str, per_tensor: bool, n_bits: int) -> None:
    found = perbit.fit_budget(model, spec, n_bits=n_bits, per_tensor=per_tensor, small="same")
    assert 0.99 * n_bits <= found.n_bits <= n_bits
    assert found.n_encodes <= 20
    assert perbit.dumps(model, found.plan, seed=found.seed) == found.frame
    assert perbit.loads(found.frame)["steps"] == 7


def test_what_is_to_be_pasted_makes_the_same_frame(model: dict[str, np.ndarray]) -> None:
    for options in ({}, {"per_tensor": True}, {"small": "fp16"}, {"small": None, "rules": {"*bias": "fp16"}}):
        found = perbit.fit_budget(model, "topk(?) | fp16", n_bits=60_000, **options)
        pasted = eval(found.plan_text, {"Plan": Plan})
        assert perbit.dumps(model, pasted, seed=0) == found.frame, options


def test_small_tensors_stay_exact(model: dict[str, np.ndarray]) -> None:
    found = perbit.fit_budget(model, "topk(?) | fp16", n_bits=80_000)
    decoded = perbit.loads(found.frame)
    np.testing.assert_array_equal(decoded["fc.bias"], model["fc.bias"])
    assert np.count_nonzero(decoded["conv1.weight"]) < model["conv1.weight"].size


def test_a_common_threshold_beats_a_common_ratio(model: dict[str, np.ndarray]) -> None:
    errors = {}
    for per_tensor in (False, True):
        found = perbit.fit_budget(model, "topk(?) | fp16", n_bits=40_000, per_tensor=per_tensor, small=None)
        decoded = perbit.loads(found.frame)
        errors[per_tensor] = sum(float(((decoded[name] - x) ** 2).sum()) for name, x in model.items())
    assert errors[True] < 0.8 * errors[False]


@pytest.mark.parametrize("spec", ["uniform(?) | rans", "qsgd(?) | rans"])
def test_bytes_go_where_they_save_most(model: dict[str, np.ndarray], spec: str) -> None:
    """Tensors of small scale get few bits, whatever their size."""
    errors = {}
    for per_tensor in (False, True):
        found = perbit.fit_budget(model, spec, n_bits=150_000, per_tensor=per_tensor, small=None, at_least=0.7)
        decoded = perbit.loads(found.frame)
        errors[per_tensor] = sum(float(((decoded[name] - x) ** 2).sum()) for name, x in model.items())
        assert perbit.dumps(model, found.plan, seed=0) == found.frame
    assert errors[True] < 0.5 * errors[False]


def test_few_tensors_share_out_whole_numbers_in_small_steps(model: dict[str, np.ndarray]) -> None:
    """Two tensors, up to 2047 levels: steps of a hundred levels would leave one of them with a single level."""
    large = {name: model[name] for name in ("conv1.weight", "fc.weight")}
    errors = {}
    for per_tensor in (False, True):
        found = perbit.fit_budget(large, "qsgd(?) | rans", n_bits=120_000, per_tensor=per_tensor, at_least=0.9)
        decoded = perbit.loads(found.frame)
        errors[per_tensor] = sum(float(((decoded[name] - x) ** 2).sum()) for name, x in large.items())
    assert errors[True] < errors[False]


def test_an_empty_model_has_nothing_to_share() -> None:
    with pytest.raises(BudgetError, match="no tensor"):
        perbit.fit_budget({"steps": np.array([1])}, "uniform(?)", n_bytes=100, per_tensor=True)


def test_one_array_and_either_unit() -> None:
    x = np.random.default_rng(1).standard_normal(20_000)  # float64
    found = perbit.fit_budget(x, "topk(?) | fp16", n_bytes=2500)
    assert found.n_bytes <= 2500 < found.n_bytes / 0.99
    assert perbit.encode(x, found.spec, seed=0) == found.frame
    alone = perbit.fit_budget(x, "topk(?) | fp16", n_bits=20_000, per_tensor=True)
    assert alone.n_bytes <= 2500 < alone.n_bytes / 0.99


def test_falling_sizes_are_searched_too() -> None:
    x = np.random.default_rng(1).standard_normal(20_000).astype(np.float32)
    found = perbit.fit_budget(x, "threshold(?) | fp16", n_bytes=2500)
    assert 0.99 * 2500 <= found.n_bytes <= 2500


def test_the_largest_frames_may_lie_inside_the_range() -> None:
    """With few bits a value, frames shrink again when nearly all positions are kept."""
    axis = whole_numbers("k", 1, 1000)
    assert _search(axis, lambda k: 5000 - (k - 700) ** 2 // 100, 4900, 0.99, "topk(k=?)") in range(800, 825)


def test_coarse_steps_are_explained_and_can_be_accepted() -> None:
    x = np.random.default_rng(1).standard_normal(20_000).astype(np.float32)
    with pytest.raises(BudgetError, match=r"at bits=3, the next .* at bits=4; lower at_least"):
        perbit.fit_budget(x, "uniform(?)", n_bits=70_000)
    assert perbit.fit_budget(x, "uniform(?)", n_bits=70_000, at_least=0.5).spec == "uniform(3)"


@pytest.mark.parametrize(
    ("spec", "options", "lesson"),
    [
        ("topk(?) | fp16", {"n_bits": 80}, r"the smallest has \d+ bytes at ratio=.*, the largest"),
        ("topk(?) | fp16", {"n_bytes": 10**7}, r"the smallest has .*, the largest \d+ bytes at ratio=1.0"),
        ("topk(?) | fp16", {}, "n_bits or as n_bytes"),
        ("topk(?) | fp16", {"n_bits": 8, "n_bytes": 1}, "n_bits or as n_bytes"),
        ("topk(?) | fp16", {"n_bits": 0}, "at least one byte"),
    ],
)
def test_budgets_that_cannot_be_met(
    model: dict[str, np.ndarray], spec: str, options: dict[str, int], lesson: str
) -> None:
    with pytest.raises(BudgetError, match=lesson):
        perbit.fit_budget(model, spec, **options)


# --- a budget for every message of a channel --------------------------------------------------------------------------


@pytest.mark.parametrize("small", [None, "raw"])
@pytest.mark.parametrize(
    "spec", ["topk(?) | mwl2(2, 2) | rans", "threshold(?) | fp16", "topk(?, positions=golomb) | fp16"]
)
def test_every_message_of_a_channel_fills_its_budget(
    model: dict[str, np.ndarray], spec: str, small: str | None
) -> None:
    floats = {name: x for name, x in model.items() if name != "steps"}
    channel = ErrorFeedback(Direct(Budget.of(spec, n_bits=60_000, small=small)), 1.0)
    sender, receiver = channel.init(floats)
    for number in range(4):
        sent = channel.send({name: x * (1 + number) for name, x in floats.items()}, sender, seed=number)
        assert 0.98 * 7500 <= len(sent.frame) <= 7500
        got, receiver = channel.receive(sent.frame, receiver)
        assert all(np.array_equal(got[name], sent.value[name]) for name in floats)
        sender = sent.state


def test_a_message_of_zeros_needs_less_than_its_budget() -> None:
    channel = Direct(Budget.of("topk(?) | fp16", n_bits=8000))
    sender, receiver = channel.init({"w": (100, 100)})
    sent = channel.send({"w": np.zeros((100, 100))}, sender, seed=0)
    assert len(sent.frame) < 1000
    assert not channel.receive(sent.frame, receiver)[0]["w"].any()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Budget.of("topk(0.1)", n_bits=8000), "single '\\?'"),
        (lambda: Budget.of("topk(?)", n_bits=64), "needs more than 64 bits"),
        (lambda: Budget.of(perbit.codec("topk(0.1)"), n_bits=8000), "one '\\?', got TopK"),
        (lambda: Budget.of("topk(?)", rules={"a b": "raw"}, n_bits=8000), "2 name patterns"),
    ],
)
def test_budget_plans_that_make_no_sense(make: Any, said: str) -> None:
    with pytest.raises(perbit.PerbitError, match=said):
        make()


def test_channels_heed_whole_model_plans(model: dict[str, np.ndarray]) -> None:
    floats = {name: x for name, x in model.items() if name != "steps"}
    plan = Plan.of("topk(0.05)", whole_model=True, small_below=0, flat_is_small=False)
    channel = Direct(plan)
    value = channel.send(floats, channel.init(floats)[0], seed=0).value
    everything, kept = (np.concatenate([x[name].reshape(-1) for name in floats]) for x in (floats, value))
    assert np.count_nonzero(kept) == pytest.approx(0.05 * kept.size, abs=1)
    assert np.abs(kept[kept != 0]).min() >= np.abs(everything[kept == 0]).max()
