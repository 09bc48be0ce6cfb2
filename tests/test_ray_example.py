"""The example for Ray Train, with two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "examples" / "ray" / "train.py"


@pytest.mark.slow
def test_ray_train_sends_forty_times_fewer_bytes(tmp_path: Path) -> None:
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--epochs=3"], env=os.environ | quiet, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"loss ([\d.]+), (\d+) times fewer gradient bytes", done.stdout)
    assert found
    assert float(found[1]) < 1.5
    assert int(found[2]) > 40
