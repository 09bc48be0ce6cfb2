"""Codecs of other packages: what is broken there is named and left out, and perbit goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import perbit

PLUGIN = """
from dataclasses import dataclass
from perbit.coding.families.formats import Fp16

@dataclass(frozen=True)
class Half(Fp16):
    name = "half_of_mine"
    wire_id = 0
    examples = ("half_of_mine",)
"""
OFFERS = """
[perbit.codecs]
gone = no_such_package:Codec
moved = good_plugin:NoSuchClass
taken = perbit.coding.families.sparse:kept
half = good_plugin:Half
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment with a package that offers one good codec and three that cannot be loaded."""
    (tmp_path / "good_plugin.py").write_text(PLUGIN)
    info = tmp_path / "good_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: good_plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(OFFERS)
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{before}" if before else str(tmp_path)}


def run(code: str, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )


def test_perbits_own_codecs_need_no_plugin(installed: dict[str, str]) -> None:
    frame = perbit.encode(np.arange(5, dtype=np.float32), "topk(k=2) | fp16")
    code = f"import perbit; print(perbit.decode(bytes.fromhex({frame.hex()!r})).tolist())"
    done = run(code, installed, "-W", "error")
    assert (done.returncode, done.stdout.strip()) == (0, "[0.0, 0.0, 0.0, 3.0, 4.0]"), done.stderr


def test_what_cannot_be_loaded_is_named_and_the_rest_works(installed: dict[str, str]) -> None:
    code = (
        "import perbit; print(perbit.decode(perbit.encode([1.0, 2.5], 'half_of_mine')).tolist()); perbit.codec('gone')"
    )
    done = run(code, installed)
    assert done.stdout.strip() == "[1.0, 2.5]"
    for name in ("'gone' = 'no_such_package:Codec'", "'moved' = 'good_plugin:NoSuchClass'", "'taken'"):
        assert done.stderr.count(name) == 1
    assert "'half'" not in done.stderr
    assert "SpecError: there is no codec 'gone'" in done.stderr
