"""The table of what each part of `rd` is worth."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import perbit
from perbit import files, kernels

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Kernels with smooth taps and a matrix of low rank, both with noise."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    rng = np.random.default_rng(0)
    kernels = 3 * rng.normal(size=(24, 24, 1, 1)) + rng.normal(size=(24, 24, 3, 3))
    matrix = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 90)) + rng.normal(size=(80, 90))
    return {"kernels": kernels.astype(np.float32), "matrix": 0.3 * matrix.astype(np.float32)}


def test_every_part_can_be_switched_off(
    tensors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rd_parts

    files.write_tensors(tmp_path / "toy.npz", tensors)
    monkeypatch.setattr(rd_parts, "TARGETS", (-10.0,))
    output = tmp_path / "parts.json"
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "toy.npz"), "--repeats", "1", "--output", str(output)])
    whole = perbit.dumps(tensors, "rd(0.5)", seed=0)
    threads = perbit.get_threads()
    rd_parts.main()
    perbit.set_threads(threads)
    found = json.loads(output.read_text())
    assert list(found["means"]) == [variant.title for variant in rd_parts.VARIANTS]
    ratios = {title: by_error["-10"] for title, by_error in found["means"].items()}
    assert ratios["the whole codec"] == 1
    for title in ("no low rank", "no transform of kernels", "no means of cells", "scalar quantizer, ideal code"):
        assert ratios[title] > 1.01, title
    assert all(row["reached_db"] <= -9.9 for row in found["rows"])
    assert perbit.dumps(tensors, "rd(0.5)", seed=0) == whole  # and on again
    assert found["speed"]["toy"]["encode_by_step_times_plain"] > 0


def test_the_scalar_quantizer_is_decoded_at_the_length_of_its_entropy(tensors: dict[str, np.ndarray]) -> None:
    import rd_parts

    scalar = rd_parts.VARIANTS[-1]
    x = tensors["matrix"]
    with kernels.unfused(), ExitStack() as stack:
        for each in scalar.instead():
            stack.enter_context(each)
        frame = scalar.encoder()({"x": x}, 0.2)
        decoded = perbit.loads(frame)["x"]
    assert np.abs(decoded - x).max() < 2 * 0.2 * rd_parts.SCALAR_STEP
    levels = np.concatenate([np.zeros(6, np.int64), [1, 1]])
    assert rd_parts.entropy(levels) == pytest.approx(6 * np.log2(8 / 6) + 2 * np.log2(8 / 2) + 2)


def test_own_steps_give_tensors_the_same_error(tensors: dict[str, np.ndarray]) -> None:
    import rd_parts
    import rd_peers

    scale = (rd_peers.energy(tensors) / rd_peers.n_values(tensors)) ** 0.5
    decoded = perbit.loads(rd_parts.own_steps()(tensors, scale * 10 ** (-8 / 20)))
    for name, x in tensors.items():
        assert rd_peers.decibels({name: x}, decoded) == pytest.approx(-8, abs=0.2)
