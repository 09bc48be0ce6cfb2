"""Averaging many sparse client frames into one dense model, without ever making the frames dense.

    python benchmarks/aggregation.py [--frames 1000] [--values 1000000] [--ratio 0.01] [--output results/aggregation.json]

Two peers: numpy decodes every frame to a dense array and sums (the numpy kernels; timed over fewer frames and scaled up), and, as a lower bound for
any such method, numpy fills and adds dense arrays from positions and values that lie decoded in memory. Processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import perbit
from perbit import kernels

F32 = NDArray[np.float32]
DISTINCT = 20  # frames that are really different; they are used in turn


def client_frames(values: int, spec: str) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [perbit.encode(rng.laplace(size=values).astype(np.float32), spec, seed=i) for i in range(DISTINCT)]


def average(frames: list[bytes], total: F32, count: int) -> None:
    for i in range(count):
        perbit.decode_add(frames[i % DISTINCT], total, 1 / count)


def average_by_numpy(frames: list[bytes], total: F32, count: int) -> None:
    with kernels.using("numpy"):
        for i in range(count):
            total += perbit.decode(frames[i % DISTINCT])
    total /= count


def average_ready_made(parts: list[tuple[NDArray[Any], F32]], total: F32, count: int) -> None:
    for i in range(count):
        positions, values = parts[i % DISTINCT]
        dense = np.zeros(total.size, np.float32)
        dense[positions] = values
        total += dense
    total /= count


def seconds(run: Callable[..., None], *arguments: Any, repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        run(*arguments)
        best = min(best, time.process_time() - begin)
    return best


def measure(spec: str, values: int, count: int) -> dict[str, Any]:
    frames = client_frames(values, spec)
    parts = [(np.flatnonzero(x), x[x != 0]) for x in map(perbit.decode, frames)]
    ours, theirs = np.zeros(values, np.float32), np.zeros(values, np.float32)
    average(frames, ours, count)
    average_ready_made(parts, theirs, count)
    assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-6)
    few = min(count, DISTINCT)
    return {
        "spec": spec,
        "frames": count,
        "values": values,
        "seconds": seconds(average, frames, ours, count),
        "numpy_seconds": seconds(average_by_numpy, frames, theirs, few) * count / few,
        "ready_made_seconds": seconds(average_ready_made, parts, theirs, count),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows = []
    for spec in (f"topk({given.ratio})", f"topk({given.ratio}) | qsgd(127) | rans"):
        row = measure(spec, given.values, given.frames)
        rows.append(row)
        decoded, ready = (row[peer] / row["seconds"] for peer in ("numpy_seconds", "ready_made_seconds"))
        print(
            f"{spec:<36}{row['seconds']:8.3f} s; numpy decoding {decoded:6.1f} x, ready-made {ready:5.1f} x", flush=True
        )
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
