"""Fig. 8: volumes by part and times on a convolution gradient of ResNet-20 (64×64×3×3 = 36 864 values) at r = 1 %.

    python experiments/deepreduce/fig8.py --gradients FOLDER

Also the claim of section 6.1 on all convolutions of the model: Fit-Poly 40 % and Fit-DExp 50 % smaller than Top-r, the permutation counted.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from common import Row, Tensors, measure, options, picture, preset, print_rows, read, save, top_r, verdict, with_best

LAYER = "9.conv2.weight"
NAMES = [
    "Top-r (1 %)",
    "DR^∅_{RLE}",
    "DR^∅_{Huffman}",
    "DR^∅_{BF-naive}",
    "DR^∅_{BF-P0}",
    "DR^∅_{BF-P1}",
    "DR^∅_{BF-P2}",
    "DR^{Deflate}_∅",
    "DR^{QSGD}_∅",
    "DR^{QSGD}_{BF-P2}",
    "DR^{Fit-Poly}_∅",
    "DR^{Fit-DExp}_∅",
    "DR^{Fit-Poly}_{BF-P2}",
    "SKCompress",
    "SKCompress (256 buckets)",
]
VALUES = ["", "raw | zstd", "fp16", "fp16 | zstd", "fitpoly", "fitpoly(3, segments=4, bits=16)", "fitdexp"]
VALUES += [f"uniform({bits}) | {coder}" for bits in range(3, 11) for coder in ("rans", "huffman")]
VALUES += [f"lloyd({bits}) | rans" for bits in (2, 3, 4, 5)] + [f"qsgd({s}) | rans" for s in (15, 31, 63, 127)]


def candidates(layer: Tensors, kept: Tensors) -> list[Row]:
    """This project's rows: positions by the smallest coder, values by any; a little more than 1 % where that pays for coarser values."""
    rows = []
    for ratio in (0.01, 0.0105, 0.011, 0.012):
        for value in VALUES:
            spec = f"topk({ratio}, positions=auto)" + (f" | {value}" if value else "")
            rows.append(measure(spec, spec, layer, kept))
    return rows


def curve_fitting(model: Tensors) -> dict[str, Any]:
    """Section 6.1 on every convolution: sizes against pairs of 32 + 32 bits, errors against Top-r's own values."""
    convolutions = {name: x for name, x in model.items() if x.ndim == 4 and x.size > 1000}
    kept = top_r(convolutions, 0.01)
    pairs = 8 * sum(round(0.01 * x.size) for x in convolutions.values())
    found = {}
    for fit, paper in (("fitpoly", 0.40), ("fitdexp", 0.50)):
        bare = 'fitpoly(segments=8, order="positions")' if fit == "fitpoly" else 'fitdexp(order="positions")'
        for spec in (f"topk(0.01, positions=raw32) | {bare}", f"topk(0.01, positions=auto) | {fit}"):
            row = measure(spec, spec, convolutions, kept)
            found[spec] = {"paper": paper, "smaller_by": 1 - row.n_bytes / pairs, "kept_error": row.kept_error}
            print(
                f"{spec}: {found[spec]['smaller_by']:.1%} smaller than pairs, error of the kept values {row.kept_error:.4f}"
            )
    return found


def main() -> None:
    arguments = options(__doc__ or "")
    model = read(arguments.gradients, "resnet20_cifar10.npz")
    layer = {LAYER: model[LAYER]}
    kept = top_r(layer, 0.01)
    rows = with_best([preset(name, layer, kept) for name in NAMES], candidates(layer, kept))
    print_rows(rows)
    fits = curve_fitting(model)
    picture(arguments.output, "fig8", rows, f"ResNet-20 {LAYER}, 36 864 values, r = 1 %")
    save(
        arguments.output,
        "fig8",
        {"rows": [asdict(row) for row in rows], "curve_fitting": fits, "verdicts": verdicts(rows, fits)},
    )


def verdicts(rows: list[Row], fits: dict[str, Any]) -> list[dict[str, Any]]:
    by_name = {row.name: row for row in rows}
    top = by_name["Top-r (1 %)"]
    poly, dexp, poly_own, dexp_own = (by_name["DR^{Fit-Poly}_∅"], by_name["DR^{Fit-DExp}_∅"], *own_fits(fits))
    bloom = 1 - by_name["DR^∅_{BF-P0}"].n_bytes / top.n_bytes
    sk = by_name["SKCompress"]
    smallest = min(rows, key=lambda row: row.n_bytes)
    slow = sk.encode_ms / by_name["DR^{QSGD}_∅"].encode_ms
    naive, p2 = by_name["DR^∅_{BF-naive}"], by_name["DR^∅_{BF-P2}"]
    return [
        verdict(
            abs(1 - poly.n_bytes / top.n_bytes - 0.40) < 0.05,
            "Fit-Poly is about 40 % smaller than Top-r",
            f"{1 - poly.n_bytes / top.n_bytes:.1%} on this layer in the paper's format; on all convolutions {poly_own:.1%} in ours",
        ),
        verdict(
            abs(1 - dexp.n_bytes / top.n_bytes - 0.50) < 0.05,
            "Fit-DExp is about 50 % smaller than Top-r",
            f"{1 - dexp.n_bytes / top.n_bytes:.1%} on this layer in the paper's format; on all convolutions {dexp_own:.1%} in ours",
        ),
        verdict(abs(bloom - 0.33) < 0.03, "BF-P0 sends 33 % fewer data than Top-r", f"{bloom:.1%} (formula: 22.5 %)"),
        verdict(
            smallest is sk,
            "SKCompress is the smallest row",
            f"{smallest.name} is, with {smallest.volume:.4f}; SKCompress has {sk.volume:.4f} with 32 buckets, our choice, "
            f"{by_name['SKCompress (256 buckets)'].volume:.4f} with the published 256",
        ),
        verdict(slow > 300, "SKCompress is three orders of magnitude slower than QSGD", f"{slow:.1f} times, encoding"),
        verdict(
            naive.error > 1.05 * top.error and p2.error < 1.05 * top.error,
            "the naive filter hurts, P2 does not",
            f"errors: Top-r {top.error:.4f}, naive {naive.error:.4f}, P2 {p2.error:.4f}",
        ),
    ]


def own_fits(fits: dict[str, Any]) -> list[float]:
    return [found["smaller_by"] for spec, found in fits.items() if "positions=auto" in spec]


if __name__ == "__main__":
    main()
