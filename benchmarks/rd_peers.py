"""What NNCodec, Fraunhofer's codec for neural networks (ISO/IEC 15938-17), makes of recorded gradients and updates.

    pip install --no-deps nncodec==2.1.3              it needs a C++ compiler, numpy and torch
    python tools/make_gradients.py                    the recordings
    python benchmarks/rd_peers.py [RECORDING …]       all of them by default; writes results/rd_peers.json

A recording counts with its tensors of at least 5000 values, coded at one step size; rates are real bytes, errors are decibels below sending nothing.
There are two curves: `plain` is NNCodec as its own `encode` sets it up, with dependent quantization, optimised context parameters and row skipping;
`optimised` lets its trellis weigh bits against errors too (lambda_scale=1), which is off by default, and slower. One thread, processor seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np

Tensors = dict[str, np.ndarray]
RESULTS = Path("results/rd_peers.json")
MINIMUM = 5000  # values of a tensor that counts
DENSITY = 3  # 2^3 step sizes an octave: neighbouring points are at most a decibel apart
SETTINGS = {"use_dq": True, "param_opt": True, "row_skipping": True, "qp_density": DENSITY}
LAMBDA = {"plain": 0.0, "optimised": 1.0}
MOST_BITS, LEAST_GAIN = 3.0, -0.3  # a curve's ends: bits a value, decibels


def nncodec() -> Any:
    """NNCodec's coding module. It also imports packages for training and pictures: stand-ins take the place of those not installed."""
    while True:
        try:
            from nncodec import nnc

            return nnc
        except ModuleNotFoundError as missing:
            if missing.name in (None, "nncodec", "numpy", "torch"):
                raise
            sys.modules[str(missing.name)] = MagicMock()


def recordings(names: list[str]) -> list[Path]:
    """Files by path, or by name in the data root; all that are there by default."""
    folder = Path(os.environ.get("PERBIT_DATA") or "~/.cache/perbit").expanduser() / "gradients"
    paths = [Path(name) if Path(name).is_file() else folder / f"{name}.npz" for name in names]
    return paths or sorted(folder.glob("*.npz"))


def large_tensors(path: Path) -> Tensors:
    with np.load(path) as file:
        return {name: file[name] for name in file.files if file[name].size >= MINIMUM}


def n_values(tensors: Tensors) -> int:
    return sum(x.size for x in tensors.values())


def energy(tensors: Tensors) -> float:
    return sum(float(np.square(x, dtype=np.float64).sum()) for x in tensors.values())


def decibels(tensors: Tensors, decoded: Tensors) -> float:
    """The error relative to that of sending nothing."""
    error = energy({name: x.astype(np.float64) - decoded[name] for name, x in tensors.items()})
    return 10 * math.log10(max(error / energy(tensors), 1e-30))


def timed(function: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """What it returns, and the processor seconds of the fastest run."""
    best, value = math.inf, None
    for _ in range(repeats):
        start = time.process_time()
        value = function()
        best = min(best, time.process_time() - start)
    return value, best


def encode(tensors: Tensors, qp: int, mode: str) -> bytearray:
    """All tensors at the step size of this quantization parameter."""
    everywhere = dict.fromkeys(tensors, np.int32(qp))
    frame: bytearray = nncodec().compress(
        tensors,
        bitstream_path=None,
        return_bitstream=True,
        qp=qp,
        qp_per_tensor=everywhere,
        lambda_scale=LAMBDA[mode],
        **SETTINGS,
    )
    return frame


def decode(frame: bytearray) -> Tensors:
    tensors: Tensors = nncodec().decompress(frame)
    return tensors


def measure(tensors: Tensors, qp: int, mode: str, repeats: int) -> dict[str, float]:
    frame, encode_seconds = timed(lambda: encode(tensors, qp, mode), repeats)
    decoded, decode_seconds = timed(lambda: decode(frame), repeats)
    return {
        "qp": qp,
        "bytes": len(frame),
        "bits_per_value": 8 * len(frame) / n_values(tensors),
        "db": decibels(tensors, decoded),
        "encode_seconds": encode_seconds,
        "decode_seconds": decode_seconds,
    }


def curve(tensors: Tensors, mode: str, repeats: int) -> list[dict[str, float]]:
    """Points by growing error, from about the root mean square as step size to both ends."""
    middle = math.floor(math.log2(energy(tensors) / n_values(tensors)) / 2) << DENSITY

    def walk(steps: Iterator[int], is_end: Callable[[dict[str, float]], bool]) -> Iterator[dict[str, float]]:
        for qp in steps:
            point = measure(tensors, qp, mode, repeats)
            yield point
            if is_end(point):
                return

    finer = list(walk(count(middle - 1, -1), lambda point: point["bits_per_value"] > MOST_BITS))
    return finer[::-1] + list(walk(count(middle), lambda point: point["db"] > LEAST_GAIN))


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def earlier(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """The recordings already measured, if by the same version with the same settings."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["recordings"] if {**found, "recordings": None} == {**head, "recordings": None} else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", metavar="RECORDING", help="a .npz file, or its name in the data root")
    parser.add_argument("--repeats", type=int, default=2, help="the fastest of so many runs counts (default 2)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    try:
        nncodec()
    except ModuleNotFoundError as missing:
        sys.exit(f"this needs the package {missing.name}: pip install --no-deps nncodec==2.1.3, beside numpy and torch")
    settings = {**SETTINGS, "lambda_scale": LAMBDA, "minimum_values": MINIMUM}
    head = {"codec": "NNCodec", "version": version("nncodec"), "settings": settings}
    rows = earlier(options.output, head)
    for path in recordings(options.recordings):
        tensors = large_tensors(path)
        curves = {mode: curve(tensors, mode, options.repeats) for mode in LAMBDA}
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shape = {"values": n_values(tensors), "tensors": len(tensors)}
        rows[path.stem] = {"sha256": digest, **shape, "curves": curves}
        write_json(options.output, {**head, "recordings": dict(sorted(rows.items()))})
        print_curves(path.stem, curves)


def print_curves(name: str, curves: dict[str, list[dict[str, float]]]) -> None:
    for mode, points in curves.items():
        print(f"\n{name}, {mode}\n{'dB':>8}{'bits/value':>12}{'encode s':>10}{'decode s':>10}")
        for p in points:
            print(
                f"{p['db']:>8.2f}{p['bits_per_value']:>12.4f}{p['encode_seconds']:>10.3f}{p['decode_seconds']:>10.3f}"
            )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
