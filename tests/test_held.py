"""Fits that are held: one code for all users of a layer (CO₃), shape and scale frozen after a boot-up phase (M22)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perbit
from perbit import presets
from perbit.coding.bits import varint
from perbit.coding.families.entropy import _PRIOR
from perbit.coding.families.fp import Fp
from perbit.coding.values import Floats
from perbit.frame.seal import SEAL_BYTES
from perbit.plan import Plan, hold

CO3 = 'fp(2, 1) | huffman(prior="always")'


def gradients(seed: int, scale: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "conv": (scale * rng.laplace(size=(64, 64))).astype(np.float32),
        "fc": rng.normal(size=(50, 40)).astype(np.float32),
    }


def parts(frame: bytes) -> dict[str, dict[str, bytes]]:
    """The sections of every tensor of a message, by name: they follow each other up to the seal, each after its length."""
    sections = [
        (tensor["name"], s["name"], s["n_bytes"])
        for tensor in perbit.inspect(frame)["tensors"]
        for s in tensor["sections"]
    ]
    at = len(frame) - SEAL_BYTES - sum(len(varint(n)) + n for _, _, n in sections)
    found: dict[str, dict[str, bytes]] = {}
    for tensor, section, n in sections:
        at += len(varint(n))
        found.setdefault(tensor, {})[section] = frame[at : at + n]
        at += n
    return found


def test_two_users_of_co3_share_one_code_a_layer_and_send_no_table() -> None:
    plan = hold(CO3, gradients(0))
    protocol = presets.co3(plan)
    like = {name: x.shape for name, x in gradients(0).items()}
    frames = []
    for user in (1, 2):
        sender, receiver = protocol.uplink.init(like)
        sent = protocol.uplink.send(gradients(user), sender, seed=user)
        value, _ = protocol.uplink.receive(sent.frame, receiver)
        assert all(np.array_equal(value[name], sent.value[name]) for name in like)
        frames.append(sent.frame)
    one, two = (parts(frame) for frame in frames)
    for name in like:
        assert one[name]["fit"] == two[name]["fit"]  # the same scale, shape and spread: the same code
        assert one[name]["symbols"][0] == two[name]["symbols"][0] == _PRIOR  # which is named, not sent
    assert one["conv"]["fit"] != one["fc"]["fit"]  # another code for another layer
    assert frames[0] != frames[1]


def test_a_held_scale_does_not_follow_the_values() -> None:
    plan = hold(CO3, gradients(0))
    scales = [parts(perbit.dumps(gradients(1, scale), plan))["conv"]["fit"] for scale in (1.0, 0.01, 30.0)]
    assert len(set(scales)) == 1
    fitted = [parts(perbit.dumps(gradients(1, scale), CO3))["conv"]["fit"] for scale in (1.0, 0.01, 30.0)]
    assert len(set(fitted)) == 3


def test_an_absolute_scale_is_the_scale() -> None:
    x = np.array([0.4, 0.6, 0.8, -1.3, 2.6, 9.0, 0.0], np.float32)
    assert perbit.decode(perbit.encode(x, "fp(2, 1, absolute=1.0)")).tolist() == [0.5, 0.5, 1.0, -1.5, 3.0, 3.0, 0.0]
    assert perbit.decode(perbit.encode(x, "fp(2, 1, absolute=10.0)")).max() == np.float32(0.3)


def test_huffman_refuses_a_table_where_there_must_be_none() -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    coder = perbit.codec(CO3).stages[1]  # type: ignore[attr-defined]
    symbols, prior = np.zeros(10, np.uint8), Fp(2, 1).quantize(Floats(x), 0).prior
    for mode in (0, 1, 2, 4):
        with pytest.raises(perbit.DecodeError, match="no coding mode"):
            coder.decode(bytes([mode]) + bytes(20), 11, prior, symbols)
    with pytest.raises(perbit.EncodeError, match="fits a distribution"):
        perbit.encode(x, 'uniform(4) | huffman(prior="always")')
    assert perbit.decode(perbit.encode(np.zeros(0, np.float32), CO3)).size == 0


@pytest.mark.parametrize(
    "spec",
    [
        'fp(2, 1) | huffman(prior="never")',
        "fp(2, 1, absolute=0.0)",
        "fp(2, 1, beta=1.0)",
        "fp(2, 1, beta=20.0, std=1.0)",
        "mwl2(2, 2, std=-1.0)",
    ],
)
def test_what_cannot_be_is_refused(spec: str) -> None:
    with pytest.raises(perbit.SpecError):
        perbit.codec(spec)


def test_a_fit_of_something_else_is_refused() -> None:
    with pytest.raises(perbit.SpecError, match="kept"):
        hold("fp(2, 1)", {}, of="some")
    with pytest.raises(perbit.SpecError, match="Budget"):
        hold(perbit.Budget.of("topk(?) | fp16", n_bits=80_000), {})


@pytest.mark.parametrize("quantizer", ["mwl2(2, 2)", "lloyd(3)", "fp(5, 2)"])
def test_shape_and_scale_of_a_boot_up_phase_stay(quantizer: str) -> None:
    plan = hold(f"topk(0.3) | {quantizer}", gradients(0))
    held = str(plan.codec_for("conv", (64, 64)))
    assert held.startswith(f"topk(0.3) | {quantizer[:-1]}, ")
    assert str(plan.codec_for("another", (64, 64))) == f"topk(0.3) | {quantizer}"
    frames = [perbit.dumps(gradients(1, scale), plan) for scale in (1.0, 5.0)]
    assert parts(frames[0])["conv"]["fit"] == parts(frames[1])["conv"]["fit"]


def test_a_fit_is_of_the_kept_values_or_of_all() -> None:
    tensors = gradients(0)
    kept, everything = (hold("topk(0.1) | mwl2(2, 2)", tensors, of) for of in ("kept", "all"))
    inner = [plan.codec_for("conv", (64, 64)).stages[1] for plan in (kept, everything)]  # type: ignore[attr-defined]
    x = np.abs(tensors["conv"]).reshape(-1)
    largest = np.sort(x)[-round(0.1 * x.size) :]
    assert inner[0].std == pytest.approx(float(np.sqrt((largest**2).mean())), rel=1e-3)
    assert inner[1].std == pytest.approx(float(np.sqrt((x**2).mean())), rel=1e-3)
    each_time = Plan.of("topk(0.1) | mwl2(2, 2)", fit="all")
    assert each_time.codecs(tensors)["conv"] == everything.codec_for("conv", (64, 64))
    assert each_time.looks_at_values


def test_one_threshold_for_the_model_although_fits_differ() -> None:
    """As M22's code has it: the values of all layers compete, each layer keeps its own shape and scale."""
    tensors = {"large": 10 * gradients(0)["conv"], "small": gradients(1)["conv"]}
    plan = hold(Plan.of("topk(0.1) | mwl2(2, 2)", whole_model=True), tensors)
    codecs = plan.codecs(tensors)
    thresholds = {codec.stages[0].level for codec in codecs.values()}  # type: ignore[attr-defined]
    fits = {codec.stages[1] for codec in codecs.values()}  # type: ignore[attr-defined]
    assert (len(thresholds), len(fits)) == (1, 2)
    values = perbit.loads(perbit.dumps(tensors, plan))
    assert sum(np.count_nonzero(x) for x in values.values()) == pytest.approx(0.1 * 2 * 4096, rel=0.01)


def test_integers_and_zeros_are_left_alone() -> None:
    tensors = {"steps": np.arange(5), "zero": np.zeros((40, 40), np.float32), "empty": np.zeros((0, 9), np.float32)}
    plan = hold(CO3, tensors)
    assert plan.rules == ()
    assert np.array_equal(perbit.loads(perbit.dumps(tensors, plan))["zero"], tensors["zero"])
