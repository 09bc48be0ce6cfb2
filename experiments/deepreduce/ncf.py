"""Table 6: an inherently sparse gradient. NCF on MovieLens 100K (the paper: 20M), Bloom filter P0 with FPR .6 and QSGD against SKCompress.

python experiments/deepreduce/ncf.py --gradients FOLDER
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from common import Row, Tensors, measure, options, picture, preset, print_rows, read, save, verdict, with_best

NAMES = ["DR^{QSGD}_{BF-P0} (NCF)", "SKCompress (NCF)"]
VALUES = [*(f"uniform({bits}) | rans" for bits in range(4, 13)), *(f"qsgd({s}) | rans" for s in (15, 31, 63, 127, 255))]
VALUES += ["fp16", "fp16 | zstd", *(f"lloyd({bits}) | rans" for bits in (3, 4, 5))]
TOLERANCE = 0.10  # of the paper's volume: another data set, another density


def candidates(gradient: Tensors) -> list[Row]:
    specs = [f"nonzero(positions=auto) | {value}" for value in VALUES] + [f"{value}" for value in VALUES]
    return [measure(spec, spec, gradient, gradient) for spec in specs]


def main() -> None:
    arguments = options(__doc__ or "")
    gradient = read(arguments.gradients, "ncf_movielens.npz")
    total = sum(x.size for x in gradient.values())
    density = sum(np.count_nonzero(x) for x in gradient.values()) / total
    rows = [preset(name, gradient, gradient) for name in NAMES]
    rows.append(measure("SKCompress, wide sketch", "skcompress(columns=1.0)", gradient, gradient))
    rows = with_best(rows, candidates(gradient))
    print_rows(rows)
    print(f"{total} values, {density:.1%} of them not zero (the paper: about 60 % on MovieLens 20M)")
    picture(arguments.output, "ncf", rows, f"NCF on MovieLens 100K, {density:.0%} not zero, FPR .6")
    save(
        arguments.output, "ncf", {"density": density, "rows": [asdict(row) for row in rows], "verdicts": verdicts(rows)}
    )


def verdicts(rows: list[Row]) -> list[dict[str, Any]]:
    found = []
    for row in rows[: len(NAMES)]:
        assert row.paper is not None
        claim = f"{row.name} takes {row.paper:.4f} of the dense size"
        found.append(
            verdict(abs(row.volume / row.paper - 1) <= TOLERANCE, claim, f"{row.volume:.4f}, error {row.error:.4f}")
        )
    slow = (rows[1].encode_ms + rows[1].decode_ms) / (rows[0].encode_ms + rows[0].decode_ms)
    found.append(
        verdict(
            slow > 100,
            "DR^{QSGD}_{BF-P0} is 380 times faster than SKCompress (on a GPU)",
            f"{slow:.1f} times on one thread",
        )
    )
    return found


if __name__ == "__main__":
    main()
