"""The search for a step takes few encodings, and forgets nothing that it should and remembers nothing that it should not."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import perbit
from perbit import kernels
from perbit.coding.bits import Writer
from perbit.coding.families.rd import RateDistortion, parts
from perbit.coding.families.rd.tensor import Tensor


def layers(seed: int = 0) -> dict[str, np.ndarray]:
    """A dense layer with structure, kernels, and a bias."""
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(100, 6)) @ rng.normal(size=(6, 300)) + rng.laplace(size=(100, 300))
    kernels = rng.normal(size=(40, 30, 1, 1)) + 0.5 * rng.normal(size=(40, 30, 3, 3))
    return {name: x.astype(np.float32) for name, x in (("d", dense), ("k", kernels), ("b", rng.normal(size=300)))}


def encodings(spec: str, tensors: dict[str, np.ndarray]) -> tuple[bytes, float]:
    """The message, and how often tensors were encoded on the way, on average."""
    with patch.object(Tensor, "_write", autospec=True, side_effect=Tensor._write) as write:
        frame = perbit.dumps(tensors, spec)
    return frame, write.call_count / len(tensors)


@pytest.mark.parametrize("bits", [0.6, 1, 3])
def test_bits_take_few_encodings(bits: float) -> None:
    tensors = layers()
    frame, count = encodings(f"rd(bits={bits})", tensors)
    goal = bits * sum(x.size for x in tensors.values())
    assert 0.95 * goal <= 8 * len(frame) <= goal
    assert count <= 4


@pytest.mark.parametrize("db", [-20, -10, -4])
def test_decibels_take_few_encodings(db: float) -> None:
    tensors = layers()
    frame, count = encodings(f"rd(db={db})", tensors)
    decoded = perbit.loads(frame)
    error = sum(float(np.square(x - decoded[name], dtype=np.float64).sum()) for name, x in tensors.items())
    energy = sum(float(np.square(x, dtype=np.float64).sum()) for x in tensors.values())
    assert 0.9 * 10 ** (db / 10) <= error / energy <= 10 ** (db / 10)
    assert count <= 4


def test_a_step_needs_one_encoding() -> None:
    assert encodings("rd(0.5)", layers())[1] == 1


def test_messages_do_not_depend_on_those_before() -> None:
    """The same arrays with other values: nothing of the first message may be left."""
    tensors, others = layers(), layers(1)
    expected = perbit.dumps(others, "rd(bits=1)")
    perbit.dumps(tensors, "rd(bits=1)")
    for name, x in tensors.items():
        x[...] = others[name]
    assert perbit.dumps(tensors, "rd(bits=1)") == expected


def test_what_a_search_found_out_is_used_once() -> None:
    """A codec that outlives its message knows nothing of the arrays any more."""
    x = layers()["d"]
    codec = RateDistortion(bits=1).shared_by([x])
    first = perbit.encode(x, codec)
    x *= np.float32(0.5)
    assert perbit.encode(x, codec) == perbit.encode(x, f"rd({codec.step!r})") != first


def test_the_step_of_a_search_gives_the_same_frame() -> None:
    tensors = layers()
    frame = perbit.dumps(tensors, "rd(bits=0.7)")
    (spec,) = {row["spec"] for row in perbit.inspect(frame)["tensors"]}
    assert perbit.dumps(tensors, spec) == frame


def test_estimates_are_near() -> None:
    """Within a third, over the rates that matter."""
    for name, x in layers().items():
        if name != "b":
            each = Tensor(x, 64)
            for step in (0.01, 0.1, 0.5, 1.0):
                out = Writer()
                each.write(step, out)
                _, n_bytes = each.estimate(step)
                assert n_bytes == pytest.approx(sum(map(len, out.pieces)), rel=0.35)


def test_no_components_for_noise_at_fine_steps() -> None:
    """Values of thousands of steps once looked so expensive that components of pure noise seemed to pay."""
    x = np.random.default_rng(0).laplace(size=(128, 200)).astype(np.float32)
    sizes = [len(perbit.encode(x, f"rd({step})")) for step in (0.003, 0.004, 0.006, 0.01, 0.02)]
    assert sizes == sorted(sizes, reverse=True)
    plain = [len(perbit.encode(x, f"rd({step}, rank=0)")) for step in (0.003, 0.004, 0.006, 0.01, 0.02)]
    assert all(size <= 1.02 * other for size, other in zip(sizes, plain, strict=True))


def test_values_too_small_to_pay_are_not_tried() -> None:
    """Half a step is nothing, by whatever way it is found out."""
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (60, 70)).astype(np.float32)
    with kernels.unfused(), patch.object(parts, "TrellisPart", side_effect=AssertionError):
        short = perbit.encode(x, "rd(1, rank=0)")
    with kernels.unfused(), patch.object(parts, "_is_hopeless", lambda mean_square, largest: False):
        assert perbit.encode(x, "rd(1, rank=0)") == short
    assert not perbit.decode(short).any()


def test_a_model_of_a_few_values_moves() -> None:
    """Names and heads alone take more than a bit per value."""
    rng = np.random.default_rng(0)
    model = {"weight": rng.normal(size=(4, 3)).astype(np.float32), "bias": rng.normal(size=3).astype(np.float32)}
    back = perbit.loads(perbit.dumps(model, "rd(bits=1)"))
    error = sum(float(((back[name] - x) ** 2).sum()) for name, x in model.items())
    assert error < 0.01 * sum(float((x**2).sum()) for x in model.values())
