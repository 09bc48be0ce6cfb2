"""Sizes of SketchML, SKCompress and 3LC against formulas (expected_volumes.py says where these come from), on synthetic input.

    python experiments/deepreduce/formulas.py [--output FOLDER]

Input: Laplace values at positions drawn at random; for 3LC, values -1 and 1 among zeros.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import expected_volumes as expected
import numpy as np
from common import save, verdict

import perbit

N = 1_000_000


def sketches(kept: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    x = np.zeros(N, np.float32)
    x[rng.choice(N, kept, replace=False)] = rng.laplace(size=kept)
    formulas = {"sketchml": expected.sketchml_bytes(N, kept), "skcompress": expected.skcompress_bytes(N, kept)}
    return [_row(f"{name}, {kept} of {N}", len(perbit.encode(x, name)), size) for name, size in formulas.items()]


def ternary(zeros: float) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = (rng.choice([-1, 1], N) * (rng.random(N) >= zeros)).astype(np.float32)
    return _row(f"threelc, {zeros:.1%} zeros", len(perbit.encode(x, "threelc")), expected.threelc_bytes(N, zeros))


def _row(name: str, n_bytes: int, formula: float) -> dict[str, Any]:
    print(f"{name:<32}{n_bytes:>9} bytes{formula:>12.0f} by formula{n_bytes / formula - 1:>9.2%}")
    return {"name": name, "n_bytes": n_bytes, "formula": formula, "difference": n_bytes / formula - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/deepreduce"))
    folder = parser.parse_args().output
    rows = [row for kept in (10_000, 100_000, 400_000) for row in sketches(kept)]
    rows += [ternary(zeros) for zeros in (0.5, 0.9, 0.97, 0.995)]
    named = [row for row in rows if not row["name"].startswith("sketchml")]
    worst = max(abs(row["difference"]) for row in named)
    verdicts = [
        verdict(worst < 0.05, "SKCompress and 3LC have the sizes their definitions predict", f"within {worst:.2%}")
    ]
    save(folder, "formulas", {"rows": rows, "verdicts": verdicts})


if __name__ == "__main__":
    main()
