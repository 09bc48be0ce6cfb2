"""Laws over every channel: exact values, memories that stay equal, conservation, and recovery from every kind of loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.channels import Channel, Direct, ErrorFeedback, Layout, Momentum, Shifted, State, Summed, Warmup, frames
from perbit.channels.store import InMemory, OnDisk
from perbit.plan.plan import Plan
from perbit.randomness import fold

QSGD = "qsgd(1, bucket=0) | rans"
CHANNELS: dict[str, Channel] = {
    "direct": Direct("qsgd(3) | rans"),
    "direct raw": Direct("raw"),
    "direct sparse": Direct("topk(0.1) | fp16"),
    "feedback": ErrorFeedback(Direct("topk(0.1)")),
    "feedback decay": ErrorFeedback(Direct("uniform(4) | huffman"), decay=0.7),
    "feedback auto": ErrorFeedback(Direct(QSGD), decay=None),
    "shifted": Shifted(Direct(QSGD)),
    "shifted packed": Shifted(Direct("qsgd(2)"), alpha=0.1),
    "shifted by tensor": Shifted(Direct(QSGD), "tensor"),
    "shifted from the first": Shifted(Direct(QSGD), start="first"),
    "ef21": Shifted(Direct("topk(0.1)")),
    "summed": Summed(Direct(QSGD)),
    "dore": Summed(ErrorFeedback(Direct(QSGD), decay=0.1), scale=0.5),
    "shifted feedback": ErrorFeedback(Shifted(Direct("randk(0.5, scaled=false)"), alpha=0.3), decay=0.5),
    "momentum": Momentum(ErrorFeedback(Direct("topk(0.1)"))),
    "warm-up": Momentum(ErrorFeedback(Warmup(((3, "topk(0.5)"), (3, "topk(0.2)")), "topk(0.05)"))),
}
LAYOUTS = {"vector": 40, "model": {"w": (7, 5), "b": (5,)}}
EACH_CHANNEL = pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
EACH_LAYOUT = pytest.mark.parametrize("like", LAYOUTS.values(), ids=LAYOUTS)


def make_input(layout: Layout, round_: int) -> object:
    flat = np.random.default_rng(round_).normal(size=layout.n).astype(np.float32)
    return layout.unflatten(flat)


def same(layout: Layout, a: object, b: object) -> bool:
    return bool(np.array_equal(layout.flatten(a).view(np.uint32), layout.flatten(b).view(np.uint32)))


def shared(channel: Channel, state: State) -> list[bytes]:
    return [array.tobytes() for array in channel.shared(state.memory)]


@EACH_CHANNEL
@EACH_LAYOUT
def test_value_is_exact_and_memories_stay_equal(channel: Channel, like: object) -> None:
    sender, receiver = channel.init(like)
    layout = sender.layout
    for round_ in range(30):
        sent = channel.send(make_input(layout, round_), sender, seed=5)
        value, receiver = channel.receive(sent.frame, receiver)
        sender = sent.state
        assert same(layout, value, sent.value)
        assert shared(channel, sender) == shared(channel, receiver)
        assert channel.digest(sender) == channel.digest(receiver)


@EACH_CHANNEL
def test_a_thousand_rounds(channel: Channel) -> None:
    sender, receiver = channel.init(12)
    for round_ in range(1000):
        sent = channel.send(make_input(sender.layout, round_), sender, seed=1)
        value, receiver = channel.receive(sent.frame, receiver)
        sender = sent.state
        assert value.tobytes() == sent.value.tobytes()
    assert shared(channel, sender) == shared(channel, receiver)
    assert sender.sequence == receiver.sequence == 1000


@EACH_CHANNEL
def test_a_state_that_is_dropped_leaves_no_trace(channel: Channel) -> None:
    sender, _ = channel.init(40)
    x = make_input(sender.layout, 3)
    before = [array.tobytes() for array in _arrays(sender.memory)]
    first = channel.send(x, sender, seed=2)
    channel.send(make_input(sender.layout, 4), sender, seed=9)
    assert [array.tobytes() for array in _arrays(sender.memory)] == before
    assert channel.send(x, sender, seed=2).frame == first.frame
    for array in [*_arrays(first.state.memory), first.value]:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def _arrays(memory: tuple) -> list[np.ndarray]:
    return [a for part in memory for a in ([part] if isinstance(part, np.ndarray) else _arrays(part))]


@EACH_CHANNEL
@pytest.mark.parametrize("recovery", ["replay", "reset"])
@pytest.mark.parametrize("mishap", ["drop", "duplicate", "reorder"])
def test_mishaps_are_noticed_and_mended(channel: Channel, mishap: str, recovery: str) -> None:
    sender, receiver = channel.init(40)
    sent = []
    for round_ in range(6):
        sent.append(channel.send(make_input(sender.layout, round_), sender, seed=3))
        sender = sent[-1].state
        if round_ == 1:
            before_mishap = sender
    frames_ = [s.frame for s in sent]
    for frame in frames_[:2]:
        _, receiver = channel.receive(frame, receiver)
    wrong = {"drop": frames_[3], "duplicate": frames_[1], "reorder": frames_[4]}[mishap]
    with pytest.raises(perbit.StateMismatch) as caught:
        channel.receive(wrong, receiver)
    assert str(caught.value.sequence) in str(caught.value)
    assert caught.value.expected == 2
    if recovery == "replay":
        value, receiver = channel.replay([frames_[4], frames_[2], frames_[3], frames_[1], frames_[3]][:4], receiver)
        assert value.tobytes() == sent[4].value.tobytes()
        value, receiver = channel.receive(frames_[5], receiver)
    else:
        receiver = channel.resync(channel.reset(sent[4].state), receiver)
        value, receiver = channel.receive(frames_[5], receiver)
    assert value.tobytes() == sent[5].value.tobytes()
    assert shared(channel, sender) == shared(channel, receiver)
    assert before_mishap.sequence == 2


@pytest.mark.parametrize("name", ["shifted", "summed"])
def test_a_damaged_memory_is_noticed(name: str) -> None:
    channel = CHANNELS[name]
    sender, receiver = channel.init(40)
    memory = (np.full(40, 1e-30, np.float32), *receiver.memory[1:])
    damaged = State(receiver.layout, receiver.sequence, receiver.link, memory)
    frame = channel.send(make_input(sender.layout, 0), sender, seed=0).frame
    with pytest.raises(perbit.StateMismatch, match="ask the sender for a reset"):
        channel.receive(frame, damaged)


def test_a_sender_that_lost_its_memory_starts_anew() -> None:
    channel = CHANNELS["shifted"]
    sender, receiver = channel.init(40)
    for round_ in range(3):
        sent = channel.send(make_input(sender.layout, round_), sender, seed=0)
        sender, receiver = sent.state, channel.receive(sent.frame, receiver)[1]
    fresh, _ = channel.init(40)
    receiver = channel.resync(channel.reset(fresh), receiver)
    sent = channel.send(make_input(fresh.layout, 9), fresh, seed=0)
    assert channel.receive(sent.frame, receiver)[0].tobytes() == sent.value.tobytes()


@pytest.mark.parametrize("decay", [1.0, 0.7])
@pytest.mark.parametrize("spec", ["topk(0.1)", "uniform(3) | rans", "topk(0.2) | fp16"])
def test_error_feedback_conserves(spec: str, decay: float) -> None:
    """x + γ·m = value + m' at every step, and over all steps for γ = 1: nothing is lost, only late."""
    channel = ErrorFeedback(Direct(spec), decay)
    sender, _ = channel.init(200)
    total_in, total_out = np.zeros(200), np.zeros(200)
    for round_ in range(50):
        x = make_input(sender.layout, round_)
        sent = channel.send(x, sender, seed=0)
        left = x.astype(np.float64) + decay * sender.memory[0]
        right = sent.value.astype(np.float64) + sent.state.memory[0]
        assert np.allclose(left, right, rtol=0, atol=4e-7 * max(1, np.abs(left).max()))
        total_in, total_out, sender = total_in + x, total_out + sent.value, sent.state
    if decay == 1.0:
        assert np.allclose(total_in, total_out + sender.memory[0], atol=1e-4)


def test_shifted_is_diana_by_hand() -> None:
    channel = Shifted(Direct("raw"), alpha=0.25)
    sender, _ = channel.init(2)
    sent = channel.send(np.array([4, -8], np.float32), sender, seed=0)
    assert sent.value.tolist() == [4, -8]
    assert sent.state.memory[0].tolist() == [1, -2]
    sent = channel.send(np.array([5, -8], np.float32), sent.state, seed=0)
    assert sent.state.memory[0].tolist() == [2, -3.5]


def test_momentum_with_masking_by_hand() -> None:
    channel = Momentum(ErrorFeedback(Direct("topk(k=1)")), factor=0.5)
    sender, _ = channel.init(2)
    sent = channel.send(np.array([4, 1], np.float32), sender, seed=0)  # u = [4, 1], sends 4
    assert sent.value.tolist() == [4, 0]
    assert sent.state.memory[0].tolist() == [0, 1]
    sent = channel.send(np.array([0, 1], np.float32), sent.state, seed=0)  # u = [0, 1.5], v = [0, 2.5]
    assert sent.value.tolist() == [0, 2.5]
    assert sent.state.memory[0].tolist() == [0, 0]


def test_warmup_changes_the_codec_by_number() -> None:
    channel = CHANNELS["warm-up"]
    sender, receiver = channel.init(100)
    kept = []
    for round_ in range(8):
        sent = channel.send(make_input(sender.layout, round_), sender, seed=0)
        value, receiver = channel.receive(sent.frame, receiver)
        sender = sent.state
        kept.append(int(np.count_nonzero(value)))
    assert kept == [50, 50, 50, 20, 20, 20, 5, 5]


WRONG = {
    "decay above 1": (
        lambda: ErrorFeedback(Direct("raw"), decay=5),
        "ErrorFeedback: decay must be .* from 0 to 1, got 5",
    ),
    "negative decay": (lambda: ErrorFeedback(Direct("raw"), decay=-1), "decay must be .* got -1"),
    "decay nan": (lambda: ErrorFeedback(Direct("raw"), decay=float("nan")), "decay must be .* got nan"),
    "decay in words": (lambda: ErrorFeedback(Direct("raw"), decay="much"), "decay must be .* got 'much'"),
    "negative alpha": (lambda: Shifted(Direct("raw"), alpha=-3), "Shifted: alpha must be .* at most 1, got -3"),
    "alpha 0": (lambda: Shifted(Direct("raw"), alpha=0.0), "alpha must be .* above 0 .* got 0.0"),
    "alpha true": (lambda: Shifted(Direct("raw"), alpha=True), "alpha must be .* got True"),
    "scale nan": (lambda: Summed(Direct("raw"), scale=float("nan")), "Summed: scale must be .* got nan"),
    "scale 0": (lambda: Summed(Direct("raw"), scale=0), "scale must be .* above 0 .* got 0"),
    "scale beyond float32": (lambda: Summed(Direct("raw"), scale=1e39), "scale must be .* float32 can hold, got 1e"),
    "factor above 1": (lambda: Momentum(Direct("raw"), factor=2), "Momentum: factor must be .* below 1, got 2"),
    "factor 1": (lambda: Momentum(Direct("raw"), factor=1.0), "factor must be .* below 1, got 1.0"),
    "negative count": (lambda: Warmup(((-1, "raw"),), "raw"), r"Warmup: stages must be .* got \(\(-1, 'raw'\),\)"),
    "half a frame": (lambda: Warmup(((0.5, "raw"),), "raw"), "stages must be pairs"),
    "no pairs": (lambda: Warmup((3, "raw"), "raw"), "stages must be pairs"),
    "no channel": (lambda: ErrorFeedback("topk(0.1)"), r"inner must be a channel such as Direct.* got 'topk\(0.1\)'"),
    "no plan": (lambda: Direct(5), "a codec is given as a spec or as a Codec, got int"),
    "no codec of floats": (lambda: Direct("rans"), "rans"),
}


@pytest.mark.parametrize(("make", "said"), WRONG.values(), ids=WRONG)
def test_wrong_parameters_are_named(make: Callable[[], Channel], said: str) -> None:
    with pytest.raises(perbit.SpecError, match=said):
        make()


def test_parameters_at_the_edge_are_allowed() -> None:
    Warmup(((0, "raw"),), "raw")
    for decay in (0, 1, 0.5, np.float32(0.5), None):
        ErrorFeedback(Direct("raw"), decay)
    for alpha in (1e-6, 1, np.float64(0.5), None):
        Shifted(Direct("raw"), alpha)
    Momentum(Summed(Direct("raw"), 3), 0)


def test_a_memory_that_moves_by_all_that_was_sent_is_the_value_itself() -> None:
    for channel in (Shifted(Direct("topk(0.1)")), Shifted(Direct("fp16"), 1)):
        sender, receiver = channel.init(40)
        sent = channel.send(make_input(sender.layout, 0), sender, seed=0)
        value, receiver = channel.receive(sent.frame, receiver)
        assert np.shares_memory(sent.value, sent.state.memory[0])
        assert np.shares_memory(value, receiver.memory[0])
        assert value.tobytes() == sent.state.memory[0].tobytes() == receiver.memory[0].tobytes()


PLANS = {
    "codec": perbit.codec,
    "plan": Plan.of,
    "rule": lambda spec: Plan.of("raw", rules=[("", spec)]),
    "pipeline": lambda spec: perbit.codec(f"{spec} | rans"),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_frame_does_not_depend_on_what_ran_before(plan: Callable[[str], Any]) -> None:
    """2 and 2.0 are equal, but they are written differently."""
    x = np.arange(7, dtype=np.float32)
    for spec in ("mwl2(2, 2)", "mwl2(2, 2.0)", "mwl2(2, 2)"):
        channel = Direct(plan(spec), numbered=False)
        assert channel.send(x, channel.init(7)[0], seed=1).frame == perbit.dumps({"": x}, plan(spec), seed=fold(1, 0))


@dataclass(frozen=True)
class Noisy(Direct):
    """A channel that knows its ω; by accident, others compare equal."""

    noise: float = field(default=0.0, compare=False)

    def omega(self, layout: Layout) -> float:
        return self.noise


def test_default_rates_do_not_depend_on_what_ran_before() -> None:
    layout = Layout.of(10)
    assert [Shifted(Noisy("raw", noise=noise)).rate(layout) for noise in (1, 3, 1)] == [1 / 4, 1 / 8, 1 / 4]
    assert [ErrorFeedback(Noisy("raw", noise=noise), None).gamma(layout) for noise in (1, 3)] == [1 / 2, 1 / 4]


def test_frames_without_numbers_are_replayed_as_they_come() -> None:
    channel = Direct("fp16", numbered=False)
    sender, receiver = channel.init(4)
    for round_ in range(3):
        sent = []
        for draw in range(2):
            sent.append(channel.send(make_input(sender.layout, 2 * round_ + draw), sender, seed=0))
            sender = sent[-1].state
        value, receiver = channel.replay([s.frame for s in sent], receiver)
        assert value.tobytes() == sent[-1].value.tobytes()
    assert receiver.sequence == sender.sequence == 6


def test_unaligned_and_foreign_arrays_are_carried_too() -> None:
    channel = Direct("topk(0.5) | qsgd(7) | rans", numbered=False)
    state = channel.init(9)[0]
    x = np.arange(9, dtype=np.float32)
    frame = channel.send(x, state, seed=3).frame
    assert channel.send(unaligned(x), state, seed=3).frame == frame
    assert channel.send(x.astype(">f4"), state, seed=3).frame == frame


def unaligned(x: np.ndarray) -> np.ndarray:
    """The same values at an odd address."""
    room = np.zeros(x.nbytes + 1, np.uint8)
    room[1:] = x.reshape(-1).view(np.uint8)
    return room[1:].view(x.dtype).reshape(x.shape)


def test_default_rates_come_from_the_codec() -> None:
    layout = Layout.of(100)
    assert Shifted(Direct("qsgd(1, bucket=0)")).rate(layout) == pytest.approx(1 / 22)
    assert Shifted(Direct("topk(0.1)")).rate(layout) == 1.0
    assert ErrorFeedback(Direct("topk(0.1)"), None).gamma(layout) == 1.0
    assert ErrorFeedback(Direct("qsgd(1, bucket=0)"), None).gamma(layout) == pytest.approx(1 / 11)


def test_every_tensor_may_have_the_rate_of_its_own_omega() -> None:
    layout = Layout.of({"w": (100, 100), "b": (4,)})
    plan = Plan.of("qsgd(1, bucket=0)", small=None)
    channel = Shifted(Direct(plan), "tensor")
    assert channel.rate(layout) == Shifted(Direct(plan)).rate(layout) == pytest.approx(1 / (2 * 101))
    sender, receiver = channel.init(layout)
    sent = channel.send({"w": np.ones((100, 100)), "b": np.ones(4)}, sender, seed=0)
    value, after = channel.receive(sent.frame, receiver)
    h = layout.split(after.memory[0])
    assert np.allclose(h["w"], value["w"] / 202)
    assert np.allclose(h["b"], value["b"] / 6)
    assert channel.digest(sent.state) == channel.digest(after)


def test_a_memory_may_start_at_the_first_vector() -> None:
    channel = Shifted(Direct("qsgd(1, bucket=0)"), 0.1, "first")
    sender, receiver = channel.init(50)
    for k in range(3):
        x = np.random.default_rng(k).normal(size=50).astype(np.float32)
        sent = channel.send(x, sender, seed=k)
        value, receiver = channel.receive(sent.frame, receiver)
        sender = sent.state
        assert channel.digest(sender) == channel.digest(receiver)
        if k == 0:
            assert np.array_equal(value, x)
            assert np.array_equal(channel.expectation(receiver), x)
    assert not np.array_equal(value, x)
    anew = channel.resync(channel.reset(sender), channel.init(50)[1])
    assert channel.digest(anew) == channel.digest(sender)


@pytest.mark.parametrize(
    "spec", [QSGD, "qsgd(1)", "qsgd(7) | huffman", 'qsgd(200, norm="max") | rans', "raw", "topk(0.3)"]
)
@pytest.mark.parametrize("n", [1, 2, 31, 300])
@pytest.mark.parametrize("kind", ["normal", "zero", "tiny", "huge", "one"])
def test_channel_frames_are_those_of_dumps(spec: str, n: int, kind: str) -> None:
    """The short cuts of channels change no byte and no value."""
    rng = np.random.default_rng(n)
    x = {
        "normal": rng.normal(size=n),
        "zero": np.zeros(n),
        "tiny": rng.normal(size=n) * 1e-42,
        "huge": rng.uniform(-3e38, 3e38, n),
        "one": np.eye(1, n)[0],
    }[kind].astype(np.float32)
    made = frames.blueprint(perbit.codec(spec), Layout.of(n))
    for seed in range(5):
        frame, value = frames.write(made, x, seed, 300, b"abcdefgh")
        assert frame == perbit.dumps({"": x}, spec, seed=seed, sequence=300, digest=b"abcdefgh")
        assert value.tobytes() == perbit.loads(frame)[""].tobytes()
        assert frames.read(frame, made).values().tobytes() == value.tobytes()
        plain, _ = frames.write(made, x, seed, None, None)
        assert plain == perbit.dumps({"": x}, spec, seed=seed)
        header = perbit.inspect(frame)
        assert frames.overhead(frame) == header["header_bytes"] + header["checksum_bytes"]


def test_no_plan_is_taken_for_another_that_is_gone() -> None:
    """Blueprints are looked up by identity: of more plans than are remembered, each made where one before it may have lain."""
    x = np.ones((30, 40), np.float32)
    for number in range(600):
        layout = Layout.of({f"t{number}": x.shape})
        frame, _ = frames.write(
            frames.blueprint(Plan.of(f"uniform({2 + number % 5})"), layout), x.reshape(-1), 0, None, None
        )
        assert frame == perbit.dumps({f"t{number}": x}, f"uniform({2 + number % 5})", seed=0)


def test_channel_frames_of_many_tensors_are_those_of_dumps() -> None:
    """So many that the directory is compressed, which the flags of the head say."""
    rng = np.random.default_rng(0)
    tensors = {f"layer.{i}.weight": rng.normal(size=(3, 1 + i % 5)).astype(np.float32) for i in range(60)}
    layout = Layout.of(tensors)
    for plan in (
        Plan.of("topk(0.3) | fp16", small="raw"),
        Plan.of("uniform(4) | rans", small_below=10, small="fp16"),
        Plan.of("qsgd(4, bucket=0) | rans", small_below=10, small="raw"),
    ):
        made = frames.blueprint(plan, layout)
        for number, digest in ((None, None), (5, b"abcdefgh")):
            frame, value = frames.write(made, layout.flatten(tensors), 1, number, digest)
            assert frame == perbit.dumps(tensors, plan, seed=1, sequence=number, digest=digest)
            decoded = layout.flatten(perbit.loads(frame))
            assert value.tobytes() == decoded.tobytes() == frames.read(frame, made).values().tobytes()


def test_a_tensor_that_is_not_finite_is_named_however_many_short_cuts_there_are() -> None:
    tensors = {"first": np.ones((40, 30), np.float32), "second": np.full((40, 30), np.inf, np.float32)}
    layout = Layout.of(tensors)
    for plan in ("qsgd(4, bucket=0) | rans", "raw"):
        with pytest.raises(perbit.EncodeError, match="second"):
            frames.write(frames.blueprint(perbit.codec(plan), layout), layout.flatten(tensors), 1, None, None)


def test_a_receiver_refuses_frames_of_another_codec() -> None:
    """Frames say how they were coded, but a sender who chooses the codec chooses what the receiver has to spend."""
    sender, receiver = Shifted(Direct("fp16"), 0.5), Shifted(Direct("qsgd(1)"), 0.5)
    sent = sender.send(np.arange(5, dtype=np.float32), sender.init(5)[0], seed=0)
    with pytest.raises(perbit.DecodeError, match="agreed"):
        receiver.receive(sent.frame, receiver.init(5)[1])


def test_hostile_frames_end_in_decode_errors() -> None:
    channel = CHANNELS["shifted"]
    sender, receiver = channel.init(20)
    frame = channel.send(make_input(sender.layout, 0), sender, seed=0).frame
    damaged = [frame[:cut] for cut in range(len(frame))]
    damaged += [
        bytes([*frame[:i], frame[i] ^ (1 << bit), *frame[i + 1 :]]) for i in range(len(frame)) for bit in range(8)
    ]
    for bad in damaged:
        with pytest.raises(perbit.DecodeError):
            channel.receive(bad, receiver)
    resealed = [
        perbit.dumps({"": np.ones(21, np.float32)}, "raw", sequence=0, digest=channel.digest(receiver)),
        perbit.dumps({"x": np.ones(20, np.float32)}, "raw", sequence=0, digest=channel.digest(receiver)),
        perbit.dumps({"": np.ones(20, np.float32)}, "raw"),
        perbit.dumps({}, "raw", sequence=0, digest=channel.digest(receiver)),
        perbit.encode(np.ones(20, np.float32), "raw"),
        channel.reset(sender),
    ]
    for bad in resealed:
        with pytest.raises(perbit.DecodeError):
            channel.receive(bad, receiver)
    for bad in [frame, resealed[0], resealed[2], resealed[3], b""]:
        with pytest.raises(perbit.DecodeError):
            channel.resync(bad, receiver)


def test_wrong_inputs_are_named() -> None:
    channel = Direct(Plan.of("topk(0.1)"))
    sender, _ = channel.init({"w": (2, 2)})
    with pytest.raises(perbit.EncodeError, match=r"set up for tensors \['w'\]"):
        channel.send({"v": np.ones((2, 2))}, sender, seed=0)
    with pytest.raises(perbit.EncodeError, match=r"tensor 'w' has shape \(3,\)"):
        channel.send({"w": np.ones(3)}, sender, seed=0)
    with pytest.raises(perbit.EncodeError, match="channels carry floats"):
        channel.send({"w": np.ones((2, 2), int)}, sender, seed=0)
    with pytest.raises(perbit.NonFiniteError, match="1 NaN"):
        channel.send({"w": np.array([[1, np.nan], [0, 0]])}, sender, seed=0)
    vector, _ = Direct(QSGD).init(2)
    with pytest.raises(perbit.NonFiniteError, match="1 NaN"):
        Direct(QSGD).send(np.array([1, np.nan], np.float32), vector, seed=0)


def test_memories_on_disk_are_the_same(tmp_path) -> None:
    channel = CHANNELS["shifted feedback"]
    sender, receiver = channel.init(16)
    for first in (sender, receiver):
        stores = [InMemory(first), OnDisk(tmp_path, first, cached=0)]
        sent = channel.send(np.ones(16, np.float32), sender, seed=0)
        changed = sent.state if first is sender else channel.receive(sent.frame, receiver)[1]
        stores = [store.put({1: changed}) for store in stores]
        for worker in range(3):
            a, b = (store.get(worker) for store in stores)
            assert (a.sequence, a.link) == (b.sequence, b.link)
            assert [x.tobytes() for x in _arrays(a.memory)] == [x.tobytes() for x in _arrays(b.memory)]
