"""Damaged `rd` frames with a valid checksum: refused or other values, the same on every back end, within little memory.

The lies of each field are in attacks/rd.py, and run with all other attacks (test_attacks.py).
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import perbit
from attacks.build import array, sealed, section
from attacks.rd import cut_frames
from attacks.targets import probe
from perbit import kernels
from perbit.coding.bits import varint

FRAMES = dict(cut_frames())
MAX_VALUES = 1 << 16
NATIVE = [name for name in kernels.available() if name != "numpy"] or ["numpy"]


def test_the_frames_have_what_is_to_be_damaged() -> None:
    """Outliers, components, frequencies: the bits of their heads."""
    heads = {frame[perbit.inspect(frame)["header_bytes"]] for codec, frame in FRAMES.items() if "bits" not in codec}
    assert {bit for bit in (1, 2, 4) for head in heads if head & bit} == {1, 2, 4}


@pytest.mark.parametrize("codec", FRAMES)
def test_frames_cut_anywhere_are_refused(codec: str) -> None:
    body = FRAMES[codec][:-4]
    for back_end in NATIVE:
        with kernels.using(back_end):
            for cut in range(len(body)):
                assert probe(sealed(body[:cut]), MAX_VALUES).error is not None


@pytest.mark.parametrize("codec", FRAMES)
def test_changed_bytes_mean_the_same_to_every_back_end(codec: str) -> None:
    """Every byte of the payload's beginning, where the fields are, and many of the rest."""
    body, rng = FRAMES[codec][:-4], np.random.default_rng(0)
    begin = perbit.inspect(FRAMES[codec])["header_bytes"]
    places = [*range(begin, min(begin + 30, len(body))), *rng.integers(begin, len(body), 40).tolist()]
    for number, at in enumerate(places):
        for value in {0, 1, 255, body[at] ^ 1, body[at] ^ 128} - {body[at]}:
            damaged = sealed(body[:at] + bytes([value]) + body[at + 1 :])
            outcomes = {}
            for back_end in kernels.available() if number % 5 == 0 else NATIVE:
                with kernels.using(back_end):
                    outcomes[back_end] = probe(damaged, MAX_VALUES).agreed
            assert len(set(outcomes.values())) == 1, (at, value, outcomes.keys())


BOMBS = {
    "columns without rows": array("rd(0.5)", (0, 1 << 28), b"\x00\x01\x01\x00", section(b""), b"left over"),
    "a claim of a million values": array("rd(0.5)", (1 << 20,), b"\x00\x01\x01\x00", section(b"")),
    "a claim of a million outliers": array("rd(0.5)", (1 << 20,), b"\x01", varint(1 << 20), section(b"")),
    "a claim of many components": array(
        "rd(0.5)", (64, 1 << 14), b"\x04", varint(64), b"\0", b"\x80\x3f" * 64, b"\x01\x01\x00", section(b"")
    ),
}


def read_in_little_memory(path: str, room: int) -> None:
    """Called in a process of its own: read a frame with so many bytes more than are in use."""
    perbit.decode(perbit.encode(np.ones((30, 30), np.float32), "rd(0.1)"))  # whatever is loaded on first use
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        perbit.decode(Path(path).read_bytes(), max_values=1 << 20)
    except perbit.DecodeError:
        print("refused")


@pytest.mark.parametrize("back_end", kernels.available())
@pytest.mark.parametrize("name", BOMBS)
def test_a_lie_about_sizes_takes_little_memory(name: str, back_end: str, tmp_path: Path) -> None:
    path = tmp_path / "frame"
    path.write_bytes(BOMBS[name])
    code = f"from test_rd_attacks import *; kernels.use({back_end!r}); read_in_little_memory({str(path)!r}, 68 << 20)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr[-500:]
