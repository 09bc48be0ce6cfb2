"""Table 2: relative volumes on the update of a 4.05 M-parameter LSTM at r = 10 %, tensors with one dimension raw.

python experiments/deepreduce/table2.py --gradients FOLDER
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from common import (
    Row,
    Tensors,
    errors_by_seed,
    measure,
    options,
    picture,
    preset,
    print_rows,
    read,
    save,
    top_r,
    verdict,
    with_best,
)
from dr_notation import dr

NAMES = ["Top-r (10 %)", "DR^∅_{BF-P0} (10 %)", "DR^{Fit-Poly}_∅ (10 %)", "DR^{QSGD}_{BF-P0} (10 %)"]
VALUES = [
    "",
    "fp16",
    "fitpoly",
    *(f"uniform({bits}) | rans" for bits in range(5, 11)),
    "lloyd(4) | rans",
    "lloyd(5) | rans",
]
RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
TOLERANCE = 0.004  # of the dense size, around the paper's .0621
AT_LEAST_SMALLER = 0.25
FITTED = " (the paper states no rate; this one was chosen to match)"


def candidates(update: Tensors, kept: Tensors) -> list[Row]:
    """Ten per cent as the paper keeps, or a little more to pay for coarser values (a filter sends some values by mistake)."""
    specs = [
        f"topk({ratio}, positions=gaps)" + (f" | {value}" if value else "")
        for ratio in (0.1, 0.101, 0.103)
        for value in VALUES
    ]
    return [measure(spec, spec, update, kept) for spec in specs]


def main() -> None:
    arguments = options(__doc__ or "")
    update = read(arguments.gradients, "lstm_update.npz")
    kept = top_r(update, 0.1)
    rates = [measure(f"FPR {fpr}", dr("bf-p0", "qsgd", 0.1, fpr), update, kept) for fpr in RATES]
    rows = with_best([preset(name, update, kept) for name in NAMES], candidates(update, kept))
    print_rows(rows)
    seeds = errors_by_seed(rows[-1].spec, update, range(1, 9))
    print(f"error of the last row over 8 seeds: {min(seeds):.5f} to {max(seeds):.5f}")
    print("DR^{QSGD}_{BF-P0} by false-positive rate: " + ", ".join(f"{row.name} {row.volume:.4f}" for row in rates))
    picture(
        arguments.output, "table2", rows, f"LSTM update, {sum(x.size for x in update.values())} parameters, r = 10 %"
    )
    result = {
        "rows": [asdict(row) for row in rows],
        "rates": [asdict(row) for row in rates],
        "errors_of_the_last_row_by_seed": seeds,
        "verdicts": verdicts(rows, min(seeds)),
    }
    save(arguments.output, "table2", result)


def verdicts(rows: list[Row], least_error: float) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        assert row.paper is not None
        claim = f"{row.name} takes {row.paper:.4f} of the dense size"
        found.append(
            verdict(
                abs(row.volume - row.paper) <= TOLERANCE,
                claim,
                f"{row.volume:.4f} with {row.spec}" + FITTED * ("bloom" in row.spec),
            )
        )
    top, last = rows[0], rows[-1]
    times = top.n_bytes / last.n_bytes
    found.append(
        verdict(abs(times - 3.27) < 0.2, "3.2 times less than Top-r (the abstract's 320 %)", f"{times:.2f} times")
    )
    best = last.best_strict
    text = f"{best['smaller_by']:.1%} smaller ({best['volume']:.4f}) at error {best['error']:.4f}, not above {least_error:.4f} (least of 8 seeds)"
    text += f"; of the kept values {best['kept_error']:.4f}, not above {last.kept_error:.4f}"
    found.append(
        verdict(
            best["smaller_by"] >= AT_LEAST_SMALLER and best["error"] <= least_error,
            "this project's best is at least 25 % smaller than the paper's",
            text,
        )
    )
    return found


if __name__ == "__main__":
    main()
