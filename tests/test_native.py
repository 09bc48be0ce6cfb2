"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer: the fuzzer's corpus always, much more in the slow suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native import build, fuzz

TESTS = Path(__file__).parent


def output_of(command: list[str | Path], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=environment)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout


def test_decoders_withstand_the_corpus(tmp_path: Path) -> None:
    corpus = fuzz.unpacked(tmp_path)
    said = output_of([build.replay(quick=True), "2", *corpus])
    assert said == f"{3 * len(corpus)} inputs, nothing out of bounds, both back ends agree\n"


@pytest.mark.slow
def test_decoders_withstand_many_changes_of_the_corpus(tmp_path: Path) -> None:
    output_of([build.replay(), "100", *fuzz.unpacked(tmp_path)])


@pytest.mark.slow
@pytest.mark.parametrize("avx2", [False, True], ids=["portable", "avx2"])
def test_numeric_kernels_stay_inside_their_arrays(avx2: bool) -> None:
    output_of([build.alone("numeric_sanitized", avx2)])


@pytest.mark.slow
def test_entropy_kernels_stay_inside_their_arrays() -> None:
    assert "nothing out of bounds" in output_of([build.program("entropy_check")])


@pytest.mark.slow
def test_mutated_frames_under_sanitizers() -> None:
    said = output_of([sys.executable, TESTS / "fuzz.py", "--sanitized", "--frames", "10000", "--seed", "1"])
    assert said.startswith("10000 frames")


@pytest.mark.slow
def test_mutated_frames_within_time_and_memory(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, TESTS / "fuzz.py", "--output", tmp_path / "fuzz.json", "--frames"]
    assert "; 20000 in all" in output_of([*command, "20000"])
    assert "5000 frames in" in output_of([*command, "25000"])  # the count goes on
    assert "25000 frames already" in output_of([*command, "25000"])


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["federated", "mcm"])
def test_a_federation_lives_through_kills_and_a_bad_network(protocol: str, tmp_path: Path) -> None:
    command: list[str | Path] = [
        sys.executable,
        TESTS / "soak.py",
        "--minutes",
        "0.5",
        "--pause",
        "0.5",
        "--protocol",
        protocol,
    ]
    assert "passed: True" in output_of(command, dict(os.environ))
