"""Shared by the reproductions of DeepReduce (Xu et al., NeurIPS 2021): one measurement, the best row at an error, results as JSON and PNG."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dr_notation
import numpy as np
from numpy.typing import NDArray

import perbit
from perbit.files import read_tensors, write_atomically
from perbit.plan.plan import Plan

Tensors = dict[str, NDArray[Any]]
PARTS = {
    "positions": "positions",
    "keys": "positions",
    "order": "order",
}  # sections by part; all others belong to the values
REPEATS = 5
COLORS = {"positions": "#4477aa", "order": "#ccbb44", "values": "#ee6677", "frame": "#bbbbbb"}


@dataclass(frozen=True)
class Row:
    """One codec on one set of tensors: bytes by part relative to the dense tensors, error, time."""

    name: str
    spec: str
    n_bytes: int
    volume: float
    error: float  # |decoded - dense| / |dense|
    kept_error: float  # the same over the values the paper's sparsifier keeps
    parts: dict[str, float]
    encode_ms: float
    decode_ms: float
    paper: float | None = None  # the volume the paper reports
    source: str = ""
    best: dict[str, Any] = field(default_factory=dict)  # the smallest row of this project with at most this error …
    best_strict: dict[str, Any] = field(default_factory=dict)  # … and at most this error of the kept values


def options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--gradients", type=Path, required=True, help="folder of the .npz files that tools/make_gradients.py makes"
    )
    parser.add_argument("--output", type=Path, default=Path("results/deepreduce"), help="folder for JSON and PNG")
    return parser.parse_args()


def read(folder: Path, name: str) -> Tensors:
    tensors = read_tensors(folder / name)
    assert isinstance(tensors, dict)
    return tensors


def measure(name: str, spec: str, tensors: Tensors, kept: Tensors, **more: Any) -> Row:
    """Encode as one message, tensors with one dimension raw as the paper does; `kept` is what Top-r leaves. The best of five runs counts."""
    plan = Plan.of(spec, small_below=1000)  # the authors leave tensors of up to 1000 values alone
    encode_s = decode_s = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        frame = perbit.dumps(tensors, plan, seed=1)
        middle = time.perf_counter()
        values = perbit.loads(frame)
        encode_s, decode_s = min(encode_s, middle - start), min(decode_s, time.perf_counter() - middle)
    dense = sum(x.nbytes for x in tensors.values())
    return Row(
        name,
        spec,
        len(frame),
        len(frame) / dense,
        distance(values, tensors) / distance(tensors),
        distance(values, tensors, kept) / distance(tensors, None, kept),
        {part: n_bytes / dense for part, n_bytes in by_part(frame).items()},
        1000 * encode_s,
        1000 * decode_s,
        **more,
    )


def errors_by_seed(spec: str, tensors: Tensors, seeds: Iterable[int]) -> list[float]:
    """How much the error of a codec that rounds at random depends on its seed."""
    plan = Plan.of(spec, small_below=1000)
    return [
        distance(perbit.loads(perbit.dumps(tensors, plan, seed=seed)), tensors) / distance(tensors) for seed in seeds
    ]


def distance(a: Tensors, b: Tensors | None = None, kept: Tensors | None = None) -> float:
    """The 2-norm of a, or of a - b, over all tensors; only where `kept` is not zero, if given."""
    total = 0.0
    for name, x in a.items():
        difference = x.astype(np.float64) - (b[name] if b else 0.0)
        if kept:
            difference = difference[kept[name] != 0]
        total += float((difference * difference).sum())
    return total**0.5


def top_r(tensors: Tensors, ratio: float) -> Tensors:
    """What Top-r keeps of every tensor with two or more dimensions."""
    return perbit.loads(perbit.dumps(tensors, Plan.of(f"topk({ratio})", small_below=1000)))


def by_part(frame: bytes) -> dict[str, int]:
    """Bytes of positions, order and values; what is left is the frame."""
    parts = {"positions": 0, "order": 0, "values": 0}
    for tensor in perbit.inspect(frame)["tensors"]:
        for section in tensor["sections"]:
            parts[PARTS.get(section["name"], "values")] += section["n_bytes"]
    return {**parts, "frame": len(frame) - sum(parts.values())}


def preset(name: str, tensors: Tensors, kept: Tensors) -> Row:
    row = dr_notation.PRESETS[name]
    return measure(name, row.spec, tensors, kept, paper=row.volume, source=row.source)


def with_best(rows: Iterable[Row], candidates: list[Row]) -> list[Row]:
    """Each row with the smallest candidates whose errors are not larger."""
    done = []
    for row in rows:
        fitting = [own for own in candidates if own.error <= row.error]
        strict = [own for own in fitting if own.kept_error <= row.kept_error]
        done.append(replace(row, best=_smallest(fitting, row), best_strict=_smallest(strict, row)))
    return done


def _smallest(candidates: list[Row], row: Row) -> dict[str, Any]:
    best = min(candidates, key=lambda own: own.n_bytes, default=row)
    summary = {key: getattr(best, key) for key in ("spec", "n_bytes", "volume", "error", "kept_error")}
    return {**summary, "smaller_by": 1 - best.n_bytes / row.n_bytes}


def print_rows(rows: list[Row]) -> None:
    """Volumes and errors, then this project's best: at this error of the whole tensor, and also at this error of the kept values."""
    print(f"{'row':<26}{'paper':>8}{'volume':>9}{'error':>8}{'of kept':>9}{'enc ms':>9}{'dec ms':>9}")
    for row in rows:
        paper = f"{row.paper:.4f}" if row.paper is not None else ""
        times = f"{row.encode_ms:9.2f}{row.decode_ms:9.2f}"
        print(f"{row.name:<26}{paper:>8}{row.volume:9.4f}{row.error:8.4f}{row.kept_error:9.4f}{times}")
        for label, best in (("best at this error", row.best), ("… and of kept values", row.best_strict)):
            print(
                f"  {label:<32}{best['volume']:9.4f}{best['error']:8.4f}{best['kept_error']:9.4f}   {best['smaller_by']:.0%} smaller: {best['spec']}"
            )


def verdict(agrees: bool, claim: str, found: str) -> dict[str, Any]:
    """A claim of the paper, what was found, and whether they agree; printed and recorded."""
    print(f"{'AGREES' if agrees else 'DIFFERS'}: {claim}: {found}")
    return {"agrees": agrees, "claim": claim, "found": found}


def save(folder: Path, name: str, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode()
    write_atomically(folder / f"{name}.json", lambda file: file.write(data))


def picture(folder: Path, name: str, rows: list[Row], title: str) -> None:
    """Volumes by part beside times, the paper's volume as a mark."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 0.42 * len(rows) + 1.6), width_ratios=[3, 2], sharey=True)
    places = np.arange(len(rows))
    before = np.zeros(len(rows))
    for part, color in COLORS.items():
        size = np.array([100 * row.parts[part] for row in rows])
        left.barh(places, size, left=before, color=color, label=part)
        before += size
    known = [(place, 100 * row.paper) for place, row in enumerate(rows) if row.paper is not None]
    left.plot([x for _, x in known], [y for y, _ in known], "k|", markersize=14, label="paper")
    left.plot([100 * row.best["volume"] for row in rows], places, "g*", label="this project at this error")
    strict = [100 * row.best_strict["volume"] for row in rows]
    left.plot(strict, places, "k*", mfc="none", label="… and at this error of the kept values")
    left.set(yticks=places, yticklabels=[row.name for row in rows], xlabel="% of the dense size", title=title)
    left.invert_yaxis()
    left.legend(loc="lower right", fontsize=8)
    right.barh(places - 0.2, [row.encode_ms for row in rows], 0.4, color="#4477aa", label="encode")
    right.barh(places + 0.2, [row.decode_ms for row in rows], 0.4, color="#66ccee", label="decode")
    right.set(xscale="log", xlabel="ms, one thread")
    right.legend(fontsize=8)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=110)
    plt.close(figure)
