"""Write src/perbit/gennorm/tables/gennorm.npz: levels, scales and distribution functions over the grid of shapes.

    python tools/make_gennorm_tables.py [--processes 2] [--out FILE]

The same machine writes the same bytes every time. Another libm may change the last bit of an entry: the committed file
is the reference, a new one is a change of format.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process per core is faster than threads on small matrices

import multiprocessing

import numpy as np

from perbit.gennorm import lloyd, lowfloat, priors, tables
from perbit.gennorm.distribution import GenNorm

OUT = Path(__file__).parents[1] / "src/perbit/gennorm/tables/gennorm.npz"


def row(beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Everything for one shape: levels, scales, distribution function, largest violation of Lloyd's condition."""
    source = lloyd.GenNormSource(beta)
    levels = np.zeros((tables.MAX_M + 1, (1 << tables.MAX_BITS) - 1), np.float32)
    worst = 0.0
    for m in range(tables.MAX_M + 1):
        for bits in range(1, tables.MAX_BITS + 1):
            n = 1 << (bits - 1)
            half = lloyd.solve(source, m, n).astype(np.float32)
            levels[m, n - 1 : 2 * n - 1] = half
            worst = max(worst, lloyd.violation(source, m, half.astype(np.float64)))
    scales = np.full((len(tables.FORMATS), 2), np.nan)
    for i, (e, m) in enumerate(tables.FORMATS):
        for full in (False, True):
            if lowfloat.max_code(e, m, full) > 0:  # E1M0 without its top exponent knows only zero
                scales[i, int(full)] = lowfloat.optimal_scale(beta, e, m, full)
    inside = 2 * GenNorm.with_std(beta).cell_moments(0, np.concatenate([[0.0], priors.magnitude_grid()]))
    cdf = np.minimum(np.rint(np.cumsum(inside) * priors.ONE), priors.ONE).astype(np.uint32)
    return levels, scales, cdf, worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    start = time.perf_counter()
    with multiprocessing.Pool(options.processes) as pool:
        rows = pool.map(row, [float(b) for b in tables.BETAS], chunksize=1)
    levels, scales, cdf, worst = zip(*rows, strict=True)
    np.savez_compressed(options.out, levels=np.stack(levels), scales=np.stack(scales), cdf=np.stack(cdf))
    print(f"largest violation of Lloyd's condition: {max(worst):.2e} of max(1, level)")
    print(f"{options.out}: {options.out.stat().st_size} bytes in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
