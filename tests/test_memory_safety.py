"""No process dies of what a caller does with the arrays it has handed over, nor of what a decoder is fed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perbit
from native import build
from perbit import kernels, testing

SCRIPT = Path(__file__).parent / "changing_arrays.py"
NATIVE = [name for name in kernels.available() if name != "numpy"]

# Kernels that are handed the caller's own memory, which its other threads may change: they make indexes only of what they have copied, or
# of single values that any bits keep in range. All others work on arrays of perbit's own, and may check first and use then.
SEE_THE_CALLERS_ARRAY = {
    "bucket_norms", "crc32c", "less_products", "lowfloat", "match_patterns", "moments", "quantize_codebook", "quantize_codebook_random",
    "quantize_levels_random", "quantize_uniform", "quantize_uniform_random", "scalar_cost", "scan", "select_above", "split_planes", "to_half",
    "top_k",
}  # fmt: skip
SEE_THE_CALLERS_FRAME = {
    "bloom_query", "counted_decode", "crc32c", "decode_tensor", "eliasfano_decode", "from_half", "gaps_decode", "golomb_decode", "huffman_decode",
    "huffman_decode_table", "levels_decode", "levels_decode_table", "rans_decode", "rans_decode_table", "rans_read_table", "unpack",
}  # fmt: skip
# Many kernels in one call.
FUSED = ("choose_components", "decode_tensor", "less_products", "trellis_decode", "write_part", "write_stream")


def watched(memory: np.ndarray, work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The kernels that get to see this memory while the work is done."""
    seen: set[str] = set()

    def noting(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            for value in (*arguments, *named.values()):
                if isinstance(value, bytes | bytearray | memoryview):
                    value = np.frombuffer(value, np.uint8)
                if isinstance(value, np.ndarray) and np.shares_memory(value, memory):
                    seen.add(name)
            return kernel(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name in kernels._KERNELS:
            patch.setattr(kernels.K, name, noting(name, getattr(kernels.K, name)))
        for name in FUSED if kernels.fuses() else ():
            patch.setattr(kernels.native(), name, noting(name, getattr(kernels.native(), name)))
        work()
    return seen


def test_a_kernel_that_sees_the_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(5000, np.float32)
    assert "to_half" in watched(x, lambda: perbit.encode(x, "fp16"), monkeypatch)
    frame = bytearray(perbit.encode(x, "rd(0.1)"))
    seen = watched(np.frombuffer(frame, np.uint8), lambda: perbit.decode(frame), monkeypatch)
    assert "decode_tensor" in seen or not kernels.fuses()


@pytest.mark.parametrize("spec", testing.specs())
def test_only_kernels_that_bear_it_see_memory_that_others_may_change(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).laplace(size=(400, 64)).astype(np.float32)
    frame = bytearray(perbit.encode(x, spec))
    received = np.frombuffer(frame, np.uint8)
    assert watched(x, lambda: perbit.encode(x, spec), monkeypatch) <= SEE_THE_CALLERS_ARRAY
    assert watched(x, lambda: perbit.dumps({"a": x, "b": x[:3]}, spec), monkeypatch) <= SEE_THE_CALLERS_ARRAY
    assert watched(received, lambda: perbit.decode(frame), monkeypatch) <= SEE_THE_CALLERS_FRAME
    assert watched(received, lambda: perbit.decode_add(frame, np.zeros_like(x)), monkeypatch) <= SEE_THE_CALLERS_FRAME


def test_a_trellis_survives_values_that_became_nan_after_they_were_checked() -> None:
    x = np.random.default_rng(1).normal(size=900).astype(np.float32)
    x[::7] = np.nan
    shifts, rates = np.zeros(16, np.float32), np.ones(16, np.float32)
    for n in (100, 900):  # one lane: no vectors
        made = []
        for name in NATIVE:
            out = np.zeros(n, np.uint8)
            with kernels.using(name):
                kernels.K.trellis_encode(x[:n], 4.0, shifts, rates, 0.1, out)
            made.append(out.tobytes())
        assert len(set(made)) == 1


def survives(arguments: list[str], **options: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=900, **options
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == NATIVE
    assert all(int(line.split()[2].rstrip(",")) > 0 for line in done.stdout.splitlines()), (
        done.stdout
    )  # some became frames


def test_arrays_that_change_while_they_are_encoded() -> None:
    survives(["2"])
    survives(["60", "nonzero", "threshold(0.5)", "topk(0.01)", "topk(0.01, method=sampled)", "sketchml"])


@pytest.mark.slow
def test_arrays_that_change_while_they_are_encoded_under_sanitizers() -> None:
    survives(["10"], env=build.environment())
    survives(["60", "nonzero", "threshold(0.5)", "topk(0.01)", "topk(0.01, method=sampled)"], env=build.environment())
