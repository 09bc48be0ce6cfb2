"""Reads every frame of a folder and reports as JSON the memory that took: `python -m attacks.measure FOLDER`.

A process of its own: the peak of the resident set never falls, and making the attacks takes memory too.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import tracemalloc
from pathlib import Path

import numpy as np

import perbit
from attacks.targets import read
from perbit import kernels, testing

MAX_VALUES = 1 << 20
ALLOWED = (64 << 20) + 4 * MAX_VALUES


def peak_rss() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _read(frame: bytes) -> None:
    for reader in (read, perbit.inspect):
        with contextlib.suppress(perbit.DecodeError):
            reader(frame, max_values=MAX_VALUES)


def main(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    for spec in testing.specs():  # whatever is loaded on first use
        _read(perbit.encode(np.zeros(100, np.float32), spec))
    start = peak = peak_rss()
    culprit = ""
    for path in paths:
        _read(path.read_bytes())
        if peak_rss() > peak:
            peak, culprit = peak_rss(), path.name
    peaks: dict[str, int] = {}
    if kernels.active() != "numpy":  # tracing its many small arrays takes long, and the resident set tells enough
        tracemalloc.start()
        for path in paths:
            frame = path.read_bytes()
            tracemalloc.reset_peak()
            held = tracemalloc.get_traced_memory()[0]
            _read(frame)
            peaks[path.name] = tracemalloc.get_traced_memory()[1] - held
    print(json.dumps({"frames": len(paths), "rss_growth": peak - start, "rss_culprit": culprit, "peaks": peaks}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
