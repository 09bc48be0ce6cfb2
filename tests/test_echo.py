"""Whoever made a frame knows what it says without decoding it: the same bits as whoever decodes it."""

from __future__ import annotations

import numpy as np
import pytest

import perbit
from perbit import testing
from perbit.coding.codec import Quantizer, as_pipeline
from perbit.coding.values import Known
from perbit.kernels import K
from perbit.torch.collective.coding import FrameForm

STEP = 3


def check(spec: str, shape: tuple[int, ...]) -> None:
    form = FrameForm.of([("w", shape, as_pipeline(perbit.codec(spec))), ("b", (5,), as_pipeline(perbit.codec("raw")))])
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape).astype(np.float32).reshape(-1), np.ones(5, np.float32)]
    frame, echoes = form.encode(values, [7, 8], STEP)
    before = [rng.normal(size=x.size).astype(np.float32) for x in values]
    decoded, echoed = ([x.copy() for x in before] for _ in range(2))
    form.add(frame, decoded, 0.3, STEP)
    form.add(frame, echoed, 0.3, STEP, echoes)
    assert all(one.tobytes() == other.tobytes() for one, other in zip(decoded, echoed, strict=True))


@pytest.mark.parametrize("spec", testing.specs())
def test_an_echo_is_what_the_frame_says(spec: str) -> None:
    check(spec, (40, 70))


@pytest.mark.parametrize("spec", ["uniform(4) | rans", "qsgd(7)", "qsgd(15, bucket=100) | rans"])
def test_so_it_is_in_several_chunks(spec: str) -> None:
    check(spec, (3, 400_001))


@pytest.mark.parametrize("spec", ["uniform(4) | rans", "qsgd(15) | huffman", "sign"])
def test_symbols_are_not_decoded_again(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("decoded")

    form = FrameForm.of([("w", (30, 20), as_pipeline(perbit.codec(spec)))])
    frame, echoes = form.encode([np.linspace(-1, 1, 600, dtype=np.float32)], [7], STEP)
    decoded, out = perbit.loads(frame)["w"], np.zeros(600, np.float32)
    monkeypatch.setattr(Quantizer, "decode_add", fail)
    form.add(frame, [out], 1.0, STEP, echoes)
    assert np.array_equal(out, decoded.reshape(-1))


@pytest.mark.parametrize("spec", testing.specs())
def test_a_range_that_is_known_changes_no_frame(spec: str) -> None:
    form = FrameForm.of([("w", (40, 70), as_pipeline(perbit.codec(spec)))])
    x = np.random.default_rng(1).normal(size=2800).astype(np.float32)
    assert form.encode([x], [7], STEP, [Known(range=K.scan(x))])[0] == form.encode([x], [7], STEP)[0]
