"""What positions cost: bits of every lossless coder over log2 C(n, k), on uniform sets and on the top-k of real gradients.

    python experiments/deepreduce/positions.py GRADIENTS.npz … [--output results/deepreduce/positions.json]

A file holds the gradient of each layer (tools/make_gradients.py). Layers with one dimension are left out: they are sent raw.
Sizes are summed over the layers.
"""

from __future__ import annotations

import argparse
import json
from math import lgamma, log
from pathlib import Path
from typing import Any

import numpy as np

from perbit.coding.codec import PositionCodec
from perbit.coding.spec import parse
from perbit.kernels import K

CODERS = ("raw32", "bitmap", "rle", "eliasfano", "huffgaps", "golomb", "gaps", "auto")
RATIOS = (0.01, 0.1)
Sets = list[tuple[int, Any]]


def log2_binomial(n: int, k: int) -> float:
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)


def uniform(ratio: float, n: int = 4_000_000) -> Sets:
    chosen = np.random.default_rng(0).choice(n, round(n * ratio), replace=False)
    return [(n, np.sort(chosen).astype(np.uint32))]


def largest(path: Path, ratio: float) -> Sets:
    with np.load(path) as layers:
        flat = [layers[name].reshape(-1) for name in layers.files if layers[name].ndim > 1]
    return [(x.size, K.top_k(x, max(1, round(ratio * x.size)))) for x in flat]


def measure(source: str, ratio: float, sets: Sets) -> dict[str, Any]:
    bound = sum(log2_binomial(n, positions.size) for n, positions in sets)
    row: dict[str, Any] = {"source": source, "ratio": ratio, "bits_per_position": bound / sum(p.size for _, p in sets)}
    for name in CODERS:
        coder = parse(name)
        assert isinstance(coder, PositionCodec)
        row[name] = sum(8 * len(coder.encode(positions, n)) for n, positions in sets) / bound
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gradients", type=Path, nargs="*")
    parser.add_argument("--output", type=Path, default=Path("results/deepreduce/positions.json"))
    given = parser.parse_args()
    print(f"{'':<24}{'ratio':>6}{'bound':>7}" + "".join(f"{name:>10}" for name in CODERS))
    rows = []
    for ratio in RATIOS:
        sources = {"uniform, n = 4 M": uniform(ratio), **{path.stem: largest(path, ratio) for path in given.gradients}}
        for source, sets in sources.items():
            row = measure(source, ratio, sets)
            rows.append(row)
            sizes = "".join(f"{row[name]:>10.4f}" for name in CODERS)
            print(f"{source:<24}{ratio:>6.0%}{row['bits_per_position']:>7.2f}{sizes}", flush=True)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
