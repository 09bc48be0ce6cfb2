"""What hostile frames cost a receiver: valid frames of a few bytes that stand for much work, each decoded in a process of its own.

    python benchmarks/hostile_frames.py

prints for each frame its bytes, milliseconds, how much the process grew, and what became of it; results/hostile_frames.json has the same.
Milliseconds are those of the processor, the least of three tries; the others on the machine do not count.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import perbit  # noqa: E402
from attacks import costly  # noqa: E402  the frames that the tests know

MODEL = 10_000_000
# name: (frame, how many values the receiver expects, if it says so)
FRAMES: dict[str, tuple[bytes, int | None]] = {
    **{name: (frame, None) for name, frame in costly.by_hand()},
    "randk 7 times for a model of 10 million": (costly.nested_randk(7, MODEL), MODEL),
    "huffgaps 5 times for a model of 10 million": (costly.nested_huffgaps(5, MODEL), MODEL),
}


def decode(name: str) -> dict[str, object]:
    """In a process of its own: decode one frame."""
    frame, expected = FRAMES[name]
    for spec in perbit.testing.specs():  # whatever is loaded on first use
        perbit.decode(perbit.encode(np.zeros(100, np.float32), spec))
    milliseconds, outcome = [], ""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        start = time.process_time()
        outcome = _outcome(frame, expected)
        milliseconds.append(1e3 * (time.process_time() - start))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e6
    return {
        "frame": name, "bytes": len(frame), "milliseconds": round(min(milliseconds), 2), "megabytes": round(grown, 1), "outcome": outcome,
    }  # fmt: skip


def _outcome(frame: bytes, expected: int | None) -> str:
    try:
        if frame[5] & 1:
            perbit.loads(frame)
        else:
            perbit.decode(frame, expect_shape=None if expected is None else (expected,))
    except perbit.LimitError:
        return "refused: too expensive"
    except perbit.DecodeError:
        return "refused: malformed"
    return "decoded"


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(decode(sys.argv[1])))
        return
    rows = []
    for name in FRAMES:
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
        print(
            "{bytes:>6} bytes {milliseconds:>8} ms {megabytes:>7} MB  {outcome:24} {frame}".format(**rows[-1]),
            flush=True,
        )
    (ROOT / "results" / "hostile_frames.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
