"""Bloom filter policies of DeepReduce: how many of the positions chosen are true, and whether the rate is what the formula says.

    python experiments/deepreduce/bloom_policies.py [--output results/deepreduce/bloom_policies.json]

For each density, rate and layout: the measured false-positive rate over the formula's, and the share of true positions among those that
P1 (random) and P2 (conflict sets; as the authors have it, and as earlier versions of perbit) select. Means over a few seeds.
Rates above ten times the density are left out: there false positives outnumber true ones more than ten to one, and no policy has much to
go by.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from perbit.coding.families.bloom import Bloom
from perbit_papers.bloom import expected_fpr

AT_LEAST = 16_000  # positions, so that the rate can be measured to a few percent
SMALLEST = 400_000  # values
DENSITIES = (0.001, 0.01, 0.1)
RATES = (0.6, 0.3, 0.1, 0.01, 0.001)
LAYOUTS = ("standard", "blocked")
SEEDS = 10


def measure(density: float, fpr: float, layout: str) -> dict[str, Any]:
    n = max(SMALLEST, round(AT_LEAST / density))
    k = round(density * n)
    rates, shares = [], {"p1": [], "p2": [], "p2_authors": []}
    for seed in range(SEEDS):
        positions = np.sort(np.random.default_rng(seed).choice(n, k, replace=False)).astype(np.uint32)
        _, accepted = Bloom("p0", fpr, layout).transmit(positions, n, seed)
        rates.append((accepted.size - k) / (n - k))
        for policy, share in shares.items():
            _, chosen = Bloom(policy, fpr, layout).transmit(positions, n, seed)
            share.append(float(np.isin(chosen, positions, assume_unique=True).mean()))
    filter_ = Bloom("p0", fpr, layout)
    return {
        "n": n,
        "density": density,
        "fpr": fpr,
        "layout": layout,
        "hashes": filter_.hashes,
        "bits_per_position": 8 * filter_.filter_bytes(k) / k,
        "fpr_formula": expected_fpr(filter_, k),
        "fpr_measured": float(np.mean(rates)),
        "p1_true": float(np.mean(shares["p1"])),
        "p2_true": float(np.mean(shares["p2"])),
        "p2_authors_true": float(np.mean(shares["p2_authors"])),
    }


def line(row: dict[str, Any]) -> str:
    ratio = row["fpr_measured"] / row["fpr_formula"]
    return (
        f"{row['density']:>7.1%} {row['fpr']:>6} {row['layout']:<9}{row['hashes']:>3} {row['bits_per_position']:>7.2f}"
        f" {row['fpr_formula']:>10.5f} {ratio:>9.3f} {row['p1_true']:>8.4f} {row['p2_true']:>8.4f}"
        f" {row['p2_authors_true']:>10.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/deepreduce/bloom_policies.json"))
    output = parser.parse_args().output
    print("density    fpr layout   k  bits/pos    formula  measured/  P1 true  P2 true    authors")
    rows = []
    for density in DENSITIES:
        for fpr in (rate for rate in RATES if rate <= 10 * density):
            for layout in LAYOUTS:
                rows.append(measure(density, fpr, layout))
                print(line(rows[-1]), flush=True)
    for row in rows:
        assert min(row["p2_true"], row["p2_authors_true"]) > row["p1_true"], "P2 must find more true positions than P1"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"seeds": SEEDS, "rows": rows}, indent=1) + "\n")
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
