"""How fast `rd` is beside NNCodec, at the same error: recorded gradients and updates, encoded and decoded in turn.

    pip install --no-deps nncodec==2.1.3              beside numpy and torch
    python benchmarks/rd_speed.py [RECORDING …]       all of the data root by default; writes results/rd_speed.json
    OPENBLAS_NUM_THREADS=1 python benchmarks/rd_speed.py      on a busy machine

NNCodec as its own `encode` sets it up (`plain` in benchmarks/rd_peers.py), with the step size whose error is nearest; `rd` by the step that `db`
finds for that very error, and by as many `bits`. Tensors of at least 5000 values, real frames, one thread, processor seconds; everything runs
once in each of some rounds, and the fastest counts. Rows of other recordings stay in the file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rd_peers as peers
from rd_peers import Tensors

import perbit

RESULTS = Path("results/rd_speed.json")
TARGETS = (-13.0, -5.0)  # decibels
SPAN = 8 << peers.DENSITY  # step sizes below and above the root mean square

Runner = tuple[Callable[[], Any], Callable[[Any], Any]]


def nearest_qp(tensors: Tensors, target: float) -> tuple[int, float]:
    """NNCodec's step size whose error is nearest to this, and the error."""
    middle = math.floor(math.log2(peers.energy(tensors) / peers.n_values(tensors)) / 2) << peers.DENSITY
    errors: dict[int, float] = {}

    def error(qp: int) -> float:
        if qp not in errors:
            errors[qp] = peers.decibels(tensors, peers.decode(peers.encode(tensors, qp, "plain")))
        return errors[qp]

    fine, coarse = middle - SPAN, middle + SPAN
    while coarse - fine > 1:
        between = (fine + coarse) // 2
        fine, coarse = (between, coarse) if error(between) <= target else (fine, between)
    best = min((fine, coarse), key=lambda qp: abs(error(qp) - target))
    return best, error(best)


def runner(tensors: Tensors, spec: str) -> Runner:
    plan = perbit.Plan.of(spec, small=None)
    return lambda: perbit.dumps(tensors, plan, seed=0), perbit.loads


def step_of(frame: bytes, n: int) -> str:
    """The spec with the step that all tensors of a frame share."""
    specs: list[str] = [t["spec"] for t in perbit.inspect(frame, max_values=n)["tensors"]]
    return next(spec for spec in specs if spec.startswith("rd("))


def race(runners: dict[str, Runner], repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of each, in turn, the fastest of so many rounds; and the bytes."""
    best = {name: {"encode": math.inf, "decode": math.inf, "bytes": 0.0} for name in runners}
    for _ in range(repeats):
        for name, (encode, decode) in runners.items():
            frame, seconds = peers.timed(encode, 1)
            best[name]["encode"] = min(best[name]["encode"], seconds)
            best[name]["decode"] = min(best[name]["decode"], peers.timed(partial(decode, frame), 1)[1])
            best[name]["bytes"] = len(frame)
    return best


def compare(name: str, tensors: Tensors, target: float, repeats: int) -> dict[str, Any]:
    n = peers.n_values(tensors)
    qp, error = nearest_qp(tensors, target)
    frame = perbit.dumps(tensors, perbit.Plan.of(f"rd(db={error:.4f})", small=None), seed=0)
    found = race(
        {
            "step": runner(tensors, step_of(frame, n)),
            "bits": runner(tensors, f"rd(bits={8 * len(frame) / n:.4g})"),
            "peer": (partial(peers.encode, tensors, qp, "plain"), peers.decode),
        },
        repeats,
    )
    rates = {f"{way}_mb_per_second": 4e-6 * n / found["step"][way] for way in ("encode", "decode")}
    times = {f"{way}_times_peer": found["peer"][way] / found["step"][way] for way in ("encode", "decode")}
    by_bits = {
        "encode_by_bits_mb_per_second": 4e-6 * n / found["bits"]["encode"],
        "encode_by_bits_times_peer": found["peer"]["encode"] / found["bits"]["encode"],
    }
    bytes_by_peer = found["step"]["bytes"] / found["peer"]["bytes"]
    return {"recording": name, "values": n, "db": error, "bytes_by_peer": bytes_by_peer, **rates, **times, **by_bits}


def earlier(path: Path, head: dict[str, str]) -> list[dict[str, Any]]:
    """Rows already measured beside the same version."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found["rows"] if found and {**found, **head} == found else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", metavar="RECORDING", help="a .npz file, or its name in the data root")
    parser.add_argument("--repeats", type=int, default=5, help="the fastest of so many rounds counts (default 5)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    perbit.set_threads(1)
    head = {"peer": f"NNCodec {version('nncodec')}, plain"}
    paths = peers.recordings(options.recordings)
    rows = [row for row in earlier(options.output, head) if row["recording"] not in {path.stem for path in paths}]
    for path in paths:
        for target in TARGETS:
            rows.append(compare(path.stem, peers.large_tensors(path), target, options.repeats))
            print(
                ", ".join(f"{key} {x:.3g}" if isinstance(x, float) else f"{x}" for key, x in rows[-1].items()),
                flush=True,
            )
        peers.write_json(options.output, {**head, "rows": sorted(rows, key=lambda row: (row["recording"], row["db"]))})


if __name__ == "__main__":
    main()
