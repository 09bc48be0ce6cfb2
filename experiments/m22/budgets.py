"""M-magnitude-weighted L₂ quantizers (docs/bibliography.md): every strategy at its budget in real bytes, and what the paper's own K really cost.

    python tools/make_gradients.py cnn
    python experiments/m22/budgets.py <data>/gradients/cnn_cifar10_step*.npz     writes results/m22_budgets.json and .png

The paper chooses K by dR = log₂C(d,K) + K·R, but lists the K of dR = K·R. Table-I CNN, 551 722 trainable parameters.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import perbit
from perbit import files
from perbit.gennorm import fit
from perbit.report.style import COLOURS, picture
from perbit_papers import counts
from perbit_papers.results import RESULTS, verdict, write_json

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Strategy:
    """One line of the paper: how values are coded after topK, at R bits each, with the K it lists."""

    name: str
    values: str
    bits: int
    m: int  # weight of the error it is meant for
    budget: int
    listed_k: int
    version: str  # of the paper


def strategies(version: str, budget: int, bits: int, m: int, listed: tuple[int, int, int]) -> list[Strategy]:
    dense, fp16, fp8 = listed
    return [
        Strategy("topK + uniform", f"uniform({bits})", bits, m, budget, dense, version),
        Strategy("topK + fp16", "fp16", 16, m, budget, fp16, version),
        Strategy("topK + fp8", "fp(5, 2)", 8, m, budget, fp8, version),
        Strategy(f"topK + {m}-mw L₂", f"mwl2(bits={bits}, m={m})", bits, m, budget, dense, version),
    ]


MUST = [
    *strategies("revised", 664_000, 2, 2, (331_725, 41_466, 82_932)),
    *strategies("revised", 996_000, 3, 4, (331_725, 62_199, 124_398)),
]
EARLIER = [
    *strategies("first", 500_000, 2, 2, (250_000, 31_250, 62_500)),
    *strategies("first", 1_000_000, 4, 2, (250_000, 62_500, 125_000)),
]


def errors(tensors: Tensors, frame: bytes, m: float) -> dict[str, float]:
    """Squared error over energy, plain and weighted by |g|^m, of what the frame decodes to."""
    decoded = perbit.loads(frame)
    x = np.concatenate([v.reshape(-1) for v in tensors.values()]).astype(np.float64)
    y = np.concatenate([decoded[name].reshape(-1) for name in tensors]).astype(np.float64)
    weight = np.abs(x) ** m
    error, energy = (x - y) ** 2, x * x
    return {
        "error": float(error.sum() / energy.sum()),
        "weighted_error": float((weight * error).sum() / (weight * energy).sum()),
    }


def cost_of_listed_k(tensors: Tensors, strategy: Strategy) -> dict[str, Any]:
    """The listed K by the paper's formula and as a real frame."""
    d = sum(x.size for x in tensors.values())
    everywhere = perbit.Plan.of(f"topk({strategy.listed_k / d:.6f}) | {strategy.values}", small=None)
    frame = perbit.dumps(tensors, everywhere, seed=0)
    formula = counts.topk_bits(d, strategy.listed_k, strategy.bits)
    solved = counts.solve_k(d, strategy.budget, strategy.bits)
    return asdict(strategy) | {"formula_bits": round(formula), "real_bits": 8 * len(frame), "solved_k": solved}


def at_budget(tensors: Tensors, strategy: Strategy, tail: str = "", per_tensor: bool = False) -> dict[str, Any]:
    """The strategy fitted to its budget; `tail` adds an entropy coder, which the paper does without."""
    spec = f"topk(?) | {strategy.values}{tail}"
    row: dict[str, Any] = {
        "strategy": strategy.name,
        "budget": strategy.budget,
        "template": spec,
        "per_tensor": per_tensor,
    }
    try:
        found = perbit.fit_budget(tensors, spec, n_bits=strategy.budget, per_tensor=per_tensor, small=None)
    except perbit.BudgetError as error:
        return row | {"unmet": str(error)}
    kept = sum(int(np.count_nonzero(x)) for x in perbit.loads(found.frame).values())
    row |= {
        "spec": found.spec,
        "n_bits": found.n_bits,
        "filled": found.filled,
        "n_encodes": found.n_encodes,
        "kept": kept,
    }
    return row | errors(tensors, found.frame, strategy.m)


def run(tensors: Tensors) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    listed = [cost_of_listed_k(tensors, strategy) for strategy in (*MUST, *EARLIER)]
    fitted = []
    for strategy in MUST:
        for tail in ("", "" if strategy.values == "fp16" else " | rans"):
            for per_tensor in (False, True):
                row = at_budget(tensors, strategy, tail, per_tensor)
                if row not in fitted:
                    fitted.append(row)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return listed, fitted


def best_of_four(fitted: list[dict[str, Any]], budget: int, error: str, one_threshold: bool) -> str:
    """The strategy with the least error, values at a fixed rate as the paper has them."""
    rows = [
        r
        for r in fitted
        if r["budget"] == budget and r["per_tensor"] == one_threshold and not r["template"].endswith("rans")
    ]
    return str(min(rows, key=lambda row: row[error])["strategy"])


def least_errors(fits: list[list[dict[str, Any]]]) -> list[str]:
    """Whether mw L₂ has the least error, under the rule of the authors' code (one threshold) and with one ratio for every layer."""
    sentences = []
    for one_threshold, rule in ((True, "one threshold for the model"), (False, "one ratio for every layer")):
        for budget, m in ((664_000, 2), (996_000, 4)):
            for error, what in (("error", "squared"), ("weighted_error", f"{m}-weighted")):
                winners = [best_of_four(fitted, budget, error, one_threshold) for fitted in fits]
                claim = f"{m}-mw L₂ has the least {what} error of the four strategies at {budget:,} bits, {rule}"
                found = ", ".join(f"{winners.count(name)} x {name}" for name in dict.fromkeys(winners))
                good = all("mw" in name for name in winners)
                sentences.append(verdict(good, claim, f"the best of each recording: {found}"))
    return sentences


def after_topk(tensors: Tensors, ratio: float = 0.3) -> str:
    """What topK does to the shape that mw L₂ designs its levels for, on the largest tensor."""
    name = max(tensors, key=lambda name: tensors[name].size)
    x = tensors[name].reshape(-1)
    kept = x[np.argsort(-np.abs(x))[: round(ratio * x.size)]]
    y = perbit.decode(perbit.encode(x, f"topk({ratio}) | mwl2(bits=3, m=4)"))
    error, top = np.abs(x) ** 4.0 * (x - y) ** 2, float(np.abs(y).max())
    beyond = float(error[np.abs(x) > top].sum() / error.sum())
    return (
        f"{name}: β = {fit(x).dist.beta:.2f} for all values, {fit(kept).dist.beta:.2f} for the {ratio:.0%} that topK keeps; "
        f"the top level of 4-mw L₂ is {top / float(np.abs(x).max()):.2f} of the largest value, "
        f"{beyond:.0%} of the 4-weighted error lies beyond it"
    )


def show(listed: list[dict[str, Any]], fitted: list[dict[str, Any]]) -> None:
    print("\nWhat the listed K really cost")
    print(
        f"{'version':<9}{'strategy':<18}{'budget':>10}{'listed K':>10}{'log₂C+KR':>11}{'real bits':>11}{'of budget':>11}{'K that fits':>13}"
    )
    for row in listed:
        print(
            f"{row['version']:<9}{row['name']:<18}{row['budget']:>10,}{row['listed_k']:>10,}{row['formula_bits']:>11,}"
            f"{row['real_bits']:>11,}{row['real_bits'] / row['budget']:>11.2f}{row['solved_k']:>13,}"
        )
    print("\nFitted to the budget in real bytes (error: squared error over energy; weighted by |g|^M)")
    print(f"{'budget':>9}  {'spec':<38}{'kept by':<14}{'kept':>8}{'bits':>10}{'filled':>9}{'error':>8}{'weighted':>10}")
    for row in fitted:
        head = f"{row['budget']:>9,}  {row['template']:<38}{'threshold' if row['per_tensor'] else 'ratio':<14}"
        if "unmet" in row:
            print(f"{head}{'the budget exceeds its largest frame':>40}")
        else:
            numbers = f"{row['kept']:>8,}{row['n_bits']:>10,}{row['filled']:>9.2%}{row['error']:>8.3f}{row['weighted_error']:>10.4f}"
            print(head + numbers)


def draw(listed: list[dict[str, Any]], fitted: list[dict[str, Any]], path: Path) -> None:
    with picture(path, 1, 2, width=14, height=5.6) as drawing:
        cost, error = drawing.axes
        labels = [f"{row['budget'] // 1000}k {row['name'].removeprefix('topK + ')}" for row in listed]
        places = np.arange(len(listed))
        for shift, key, label in ((-0.2, "formula_bits", "log₂C(d,K) + K·R"), (0.2, "real_bits", "real frame")):
            heights = [row[key] / row["budget"] for row in listed]
            cost.bar(places + shift, heights, 0.38, color=COLOURS[0 if shift < 0 else 1], label=label)
        cost.axhline(1, color="black", linewidth=1)
        cost.set_xticks(places, labels, fontsize=8, rotation=60, ha="right")
        cost.set(title="the listed K, over the budget they are meant for", ylabel="bits / budget")
        cost.legend()
        draw_errors(error, [row for row in fitted if "unmet" not in row])


def draw_errors(ax: Any, rows: list[dict[str, Any]]) -> None:
    """One line for each way to spend a budget, a mark for each budget and each error."""

    def label(row: dict[str, Any]) -> str:
        coder = " | rans" if row["template"].endswith("rans") else ""
        name = row["strategy"].replace("2-mw", "mw").replace("4-mw", "mw")
        return f"{name}{coder}, {'one threshold' if row['per_tensor'] else 'one ratio'}"

    labels = list(dict.fromkeys(map(label, rows)))
    for index, budget in enumerate(sorted({row["budget"] for row in rows})):
        for key, marker in (("error", "o"), ("weighted_error", "D")):
            chosen = [row for row in rows if row["budget"] == budget]
            what = "squared error" if key == "error" else f"weighted by |g|^{2 * (index + 1)}"
            ax.plot(
                [row[key] for row in chosen],
                [labels.index(label(row)) for row in chosen],
                marker,
                color=COLOURS[index],
                fillstyle="full" if key == "error" else "none",
                label=f"{budget:,} bits, {what}",
            )
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.invert_yaxis()
    ax.set(xscale="log", title="error at the budget in real bytes", xlabel="relative to sending nothing")
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "recordings",
        nargs="*",
        type=Path,
        help="gradients of the Table-I CNN; the last is shown. None: judge the results again",
    )
    recordings = parser.parse_args().recordings
    if not recordings:
        known = json.loads((RESULTS / "m22_budgets.json").read_text("utf-8"))
        save(known["recordings"], known["verdicts"][-1])
        return
    results = {}
    for path in recordings:
        tensors = files.read_tensors(path)
        if not isinstance(tensors, dict):
            raise SystemExit(f"{path} holds one array, expected the tensors of a model")
        results[path.stem] = listed, fitted = run(tensors)
    show(listed, fitted)
    save({name: {"listed": a, "fitted": b} for name, (a, b) in results.items()}, after_topk(tensors))
    draw(listed, fitted, RESULTS / "m22_budgets.png")


def save(recordings: dict[str, Any], shape: str) -> None:
    """Judge what was measured; `shape` is the sentence about what topK leaves."""
    fits, listed = [found["fitted"] for found in recordings.values()], list(recordings.values())[-1]["listed"]
    plain = [row for rows in fits for row in rows if not row["template"].endswith("rans")]
    good = [row for row in plain if 0.99 <= row.get("filled", 0) <= 1]
    over = [row["real_bits"] / row["budget"] for row in listed]
    sentences = [
        f"{len(good)} of {len(plain)} fits of the revised version's strategies (recordings: {len(fits)}) fill 99 % to 100 % of their budget",
        verdict(
            False,
            "the K listed in both versions for their budgets",
            f"real frames take {min(over):.2f} to {max(over):.2f} times the budget: the lists leave out log₂C(d,K)",
        ),
    ]
    sentences += [*least_errors(fits), shape]
    write_json(RESULTS / "m22_budgets.json", {"recordings": recordings, "verdicts": sentences})
    print("\n" + "\n".join(sentences))


if __name__ == "__main__":
    main()
