"""Is `rd` ever beaten? Every tensor of recorded gradients by itself, against the other specs of this project at 0.05 to 3 bits a value.

    python benchmarks/rd_specs.py [RECORDING …]        writes results/rd_specs.json

For every frame of another spec: the bytes of `rd` at the same error, between neighbouring steps, over the bytes of that frame. The largest ratio of a
tensor is what it is beaten by at worst; below 1 it is not beaten at all. Frames are real, with headers.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import perbit
from perbit import files
from perbit.report.rd import RateSource, candidates

RESULTS = Path("results/rd_specs.json")
RECORDINGS = Path.home() / ".cache/perbit/gradients"
DEFAULT = ("cnn_cifar10_step400", "cnn_update_late", "resnet20_cifar10", "resnet20_update", "gpt_update", "lstm_update")
OTHERS = (
    "topk(?) | fp16",
    "topk(?) | fp(5, 2) | rans",
    "topk(?, positions=gaps) | mwl2(2, 2) | rans",
    "topk(?, positions=gaps) | lloyd(3) | rans",
    "uniform(?) | rans",
    'fp(2, 1, scale=?, reconstruct="centroid") | rans',
    "lloyd(?) | rans",
    "eden(?)",
    "patterns(16, ?)",
    "qsgd(?) | rans",
    "lowrank(?) | uniform(4) | rans",
    "lowrank(?) | uniform(6) | rans",
)
LEAST_VALUES, LOWEST, HIGHEST = 5000, 0.05, 3.0
STEPS = np.geomspace(0.03, 12, 40)  # in root mean squares


def point(x: NDArray[np.float32], spec: Any) -> tuple[float, float]:
    """Bits a value and error in decibels."""
    frame = perbit.encode(x, spec, seed=0)
    error = np.square(perbit.decode(frame).astype(np.float64) - x).sum() / np.square(x, dtype=np.float64).sum()
    return 8 * len(frame) / x.size, 10 * float(np.log10(max(error, 1e-30)))


def lower_hull(points: list[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Errors, falling, and bits of the points that no smaller one beats."""
    kept: list[tuple[float, float]] = []
    for bits, db in sorted(points):
        if not kept or db < kept[-1][1]:
            kept.append((bits, db))
    return np.array([db for _, db in kept]), np.array([bits for bits, _ in kept])


def worst(x: NDArray[np.float32]) -> dict[str, Any]:
    """What beats `rd` most on one tensor."""
    rms = float(np.sqrt(np.square(x, dtype=np.float64).mean()))
    errors, bits = lower_hull([point(x, f"rd({rms * step:.4g})") for step in STEPS])
    found: dict[str, Any] = {"ratio": 0.0}
    source = RateSource.of("", x)
    for spec in OTHERS:
        for chosen in candidates(spec, source):
            other_bits, db = point(x, chosen)
            if not LOWEST <= other_bits <= HIGHEST or not errors[-1] <= db <= errors[0]:
                continue
            needed = float(np.exp(np.interp(-db, -errors, np.log(bits))))
            if needed / other_bits > found["ratio"]:
                found = {"ratio": needed / other_bits, "spec": str(chosen), "bits": other_bits, "db": db}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", default=DEFAULT)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name in options.recordings:
        for tensor, x in np.load(RECORDINGS / f"{name}.npz").items():
            if x.size < LEAST_VALUES or not np.any(x):
                continue
            rows.append({"recording": name, "tensor": tensor, "values": int(x.size), **worst(x.astype(np.float32))})
            print(json.dumps(rows[-1]), flush=True)
    largest = max(rows, key=lambda row: row["ratio"])
    print(f"{len(rows)} tensors; rd needs at most {largest['ratio']:.3f} times the bytes of another spec: {largest}")
    files.write_json(options.output, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
