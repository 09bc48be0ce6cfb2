"""A bare spec means the same wherever it is given: large tensors get it, small and one-dimensional ones go as they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import perbit
from perbit import Budget, Plan
from perbit.channels import Direct, ErrorFeedback, Warmup
from perbit.plan import as_plan
from perbit.sim.federated.settings import Method

SPEC = "topk(0.01) | qsgd(15) | rans"
RNG = np.random.default_rng(4)
Model = dict[str, np.ndarray]
MODEL: Model = {
    "conv.weight": RNG.normal(size=(64, 16, 3, 3)).astype(np.float32),
    "norm.weight": RNG.normal(size=64).astype(np.float32),
    "norm.running_mean": RNG.normal(size=64).astype(np.float32),
    "norm.running_var": np.exp(RNG.normal(size=64)).astype(np.float32),
    "wide_norm.running_var": np.exp(RNG.normal(size=5000)).astype(np.float32),  # flat, if not small
    "head.weight": RNG.normal(size=(10, 64)).astype(np.float32),  # small, if not flat
}
KEPT = [name for name in MODEL if name != "conv.weight"]


def through_dumps(plan: perbit.plan.PlanLike) -> Model:
    return perbit.loads(perbit.dumps(MODEL, plan, seed=0))


def through_a_channel(channel: perbit.channels.Channel) -> Model:
    sender, receiver = channel.init(MODEL)
    received: Model = channel.receive(channel.send(MODEL, sender, seed=0).frame, receiver)[0]
    return received


WAYS: dict[str, Callable[[], Model]] = {
    "dumps": lambda: through_dumps(SPEC),
    "dumps of a codec": lambda: through_dumps(perbit.codec(SPEC)),
    "Plan": lambda: through_dumps(Plan(SPEC)),
    "Plan.of": lambda: through_dumps(Plan.of(SPEC)),
    "as_plan": lambda: through_dumps(as_plan(SPEC)),
    "Budget": lambda: through_dumps(Budget.of("topk(?) | qsgd(15) | rans", n_bits=240_000)),
    "fit_budget": lambda: through_dumps(
        perbit.fit_budget(MODEL, "topk(?) | qsgd(15) | rans", n_bits=200_000, per_tensor=True).plan
    ),
    "Direct": lambda: through_a_channel(Direct(SPEC)),
    "Direct with a codec": lambda: through_a_channel(Direct(perbit.codec(SPEC))),
    "Warmup": lambda: through_a_channel(Warmup(((1, SPEC),), "raw")),
    "ErrorFeedback": lambda: through_a_channel(ErrorFeedback(Direct(SPEC))),
    "a budget in a channel": lambda: through_a_channel(
        Direct(Budget.of("topk(?) | qsgd(15) | rans", n_bits=240_000)),
    ),
    "Method": lambda: through_a_channel(Method("x", "co3", SPEC).make().uplink),
}


@pytest.mark.parametrize("way", WAYS)
def test_statistics_and_biases_are_exact_and_weights_are_coded(way: str) -> None:
    got = WAYS[way]()
    for name in KEPT:
        assert got[name].tobytes() == MODEL[name].tobytes(), name
    assert np.count_nonzero(got["conv.weight"]) < 0.5 * MODEL["conv.weight"].size


@pytest.mark.parametrize("small", [None, "same"])
def test_small_tensors_may_get_the_same_spec(small: str | None) -> None:
    plan = Plan.of("topk(0.01)", small=small)
    assert {str(codec) for codec in plan.codecs(MODEL).values()} == {"topk(0.01)"}
    assert plan == Plan("topk(0.01)", small=None)


@pytest.mark.parametrize("size", [1, 10, 5000])
def test_a_lone_array_is_always_coded(size: int) -> None:
    x = np.linspace(1, 2, size, dtype=np.float32)
    channel = Direct("topk(k=1)")
    sender, receiver = channel.init(size)
    received = channel.receive(channel.send(x, sender, seed=0).frame, receiver)[0]
    for got in (
        received,
        perbit.decode(perbit.encode(x, "topk(k=1)")),
        perbit.loads(perbit.dumps({"": x}, "topk(k=1)"))[""],
    ):
        assert np.count_nonzero(got) == 1
    found = perbit.fit_budget(x, "topk(k=?)", n_bytes=100_000, at_least=0.0, rules={"*": "raw"})
    assert found.spec.startswith("topk(k=")
    budgeted = Budget.of("topk(k=?)", n_bits=800_000)
    assert str(budgeted.codecs({"": x})[""]).startswith("topk(k=")


# --- rules together with a budget ------------------------------------------------------------------------------------


def test_rules_of_a_budget_hold_and_count() -> None:
    rules = {"head*": "fp16", "dims:4 size:..100": "raw"}
    budget = Budget.of("topk(?) | fp16", rules, small="bf16", n_bits=100_000)
    chosen = {name: str(codec) for name, codec in budget.codecs(MODEL).items()}
    assert chosen.pop("conv.weight").startswith("topk(k=")
    assert chosen.pop("head.weight") == "fp16"
    assert set(chosen.values()) == {"bf16"}
    assert 0.98 * 12_500 <= len(perbit.dumps(MODEL, budget, seed=0)) <= 12_500 - 16


def test_a_tensor_that_a_rule_names_does_not_compete_for_the_budget() -> None:
    large = {"a": RNG.normal(size=(100, 100)), "b": 1000 * RNG.normal(size=(100, 100))}
    found = perbit.fit_budget(large, "topk(?) | fp16", n_bytes=25_000, per_tensor=True, rules={"b": "fp16"})
    decoded = perbit.loads(found.frame)
    assert np.count_nonzero(decoded["b"]) == 10_000
    assert 100 < np.count_nonzero(decoded["a"]) < 10_000


def test_what_rules_leave_nothing_of_still_goes_through_a_channel() -> None:
    """No tensor is left to share the budget, or only zeros are: frames stay within it all the same."""
    statistics = {name: MODEL[name] for name in KEPT}
    for model in (statistics, {**statistics, "w": np.zeros((100, 100), np.float32)}):
        channel = Direct(Budget.of("topk(?) | fp16", n_bits=240_000))
        sent = channel.send(model, channel.init(model)[0], seed=0)
        assert len(sent.frame) <= 30_000
        assert all(np.array_equal(sent.value[name], model[name]) for name in model)


NAMES = ["my tensor", "block [0] w", "a*", "?", '"quoted"', "tab\there", "dims:2", " ", "size:1..=x", "\\", "é\n"]


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_takes_tensors_of_any_name(name: str) -> None:
    """Each tensor gets a codec of its own by a rule with its name, which speaks of no other tensor."""
    model = {
        name: 10 * RNG.normal(size=(60, 60)),
        "a_plain_one": RNG.normal(size=(60, 60)),
        "block 0 w": RNG.normal(size=(60, 60)),
    }
    for spec in ("topk(?) | fp16", "uniform(?) | rans"):
        found = perbit.fit_budget(model, spec, n_bytes=3000, per_tensor=True, at_least=0.5)
        chosen = found.plan.codecs(model)
        assert chosen[name] != chosen["a_plain_one"], spec
        assert chosen[name] != chosen["block 0 w"], spec
        pasted = eval(found.plan_text, {"Plan": Plan})
        assert perbit.dumps(model, pasted, seed=0) == found.frame
    channel = Direct(Budget.of("topk(?) | fp16", n_bits=24_000))
    sent = channel.send(model, channel.init(model)[0], seed=0)
    assert len(sent.frame) <= 3000
    kept = {key: np.count_nonzero(value) for key, value in sent.value.items()}
    assert kept[name] > 2 * max(kept["a_plain_one"], kept["block 0 w"])


# --- what is no plan -------------------------------------------------------------------------------------------------


def test_a_plan_takes_text_or_codecs_in_every_place() -> None:
    text = Plan("topk(0.1)", {"a*": "fp16"}, "bf16")
    codecs = Plan(perbit.codec("topk(0.1)"), [("a*", perbit.codec("fp16"))], perbit.codec("bf16"))
    assert text == codecs == Plan.of("topk(0.1)", {"a*": "fp16"}, "bf16")
    assert perbit.loads(perbit.dumps(MODEL, text)).keys() == MODEL.keys()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plan(3),
        lambda: Plan(None),
        lambda: Plan(Plan("fp16")),
        lambda: Plan("rans"),
        lambda: Plan("topk(?)"),
        lambda: Plan.of("fp16", rules={"a": 3}),
        lambda: Plan.of("fp16", rules={3: "raw"}),
        lambda: Plan.of("fp16", rules="a*"),
        lambda: Plan.of("fp16", rules=3),
        lambda: Plan.of("fp16", small=3),
        lambda: Direct(Plan.of(3)),
    ],
)
def test_what_is_no_plan_is_said_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(perbit.SpecError):
        make()


def test_every_codec_of_a_plan_counts_when_feedback_and_catching_up_are_chosen() -> None:
    """An unbiased default beside a biased codec for small tensors needs error feedback; a rule with an unbiased one needs exact catching up."""
    up = perbit.presets.federated(up=perbit.Plan.of("qsgd(7) | rans", small="topk(0.01)")).uplink
    assert isinstance(up, ErrorFeedback)
    assert isinstance(perbit.presets.federated(up="qsgd(7) | rans").uplink, Direct)
    mixed = perbit.Plan.of("topk(0.1)", rules={"w": "qsgd(1, bucket=0) | rans"})
    assert type(perbit.presets.double_squeeze(down=mixed).downlink).__name__ == "Shared"
    assert type(perbit.presets.double_squeeze(down="topk(0.1)").downlink).__name__ == "Followed"
