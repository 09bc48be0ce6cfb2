"""Bytes at NNCodec's error: what a codec of perbit needs for the error that NNCodec makes, on recorded gradients and updates.

    python benchmarks/rd_peers.py                      NNCodec's points, once
    python benchmarks/rd.py [RECORDING …]              all that have points by default; writes results/rd.json
    python benchmarks/rd.py --spec "threshold(?) | mwl2(2, 2) | rans"
    OPENBLAS_NUM_THREADS=1 python benchmarks/rd.py     on a busy machine: waiting threads of the linear algebra would count as processor time

The ? of the spec is a step size (or a threshold: the error must grow with it), the same for all tensors; bisection finds it for each error.
Bytes are those of real frames with headers, of the tensors with at least 5000 values. NNCodec's `plain` and `optimised` curves are explained in
benchmarks/rd_peers.py. Both are timed in turn in the same process, in processor time on one thread, where NNCodec is installed; else its seconds are
those of results/rd_peers.json, which the table says.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rd_peers as peers
from rd_peers import Tensors

import perbit

RESULTS = Path("results/rd.json")
TARGETS = {"gradient": (-13.0, -10.0, -5.0, -2.5), "update": (-13.0, -5.0, -1.2)}  # decibels
OCTAVES = 10  # the knob is looked for so far below and above the root mean square of the values
CLOSE = 0.1  # decibels between the two points that a result lies between
MOST_HALVINGS = 24

Curve = list[dict[str, float]]
Coder = Callable[[Tensors, float], bytes]
Seconds = dict[str, dict[str, float]]  # of encode and decode, by codec


@dataclass(frozen=True)
class Point:
    """One frame: the knob it was made with, its size and its error."""

    knob: float
    n_bytes: float
    db: float


def coder(spec: str) -> Coder:
    """A function that encodes all tensors with this value of the spec's knob."""

    def encode(tensors: Tensors, knob: float) -> bytes:
        plan = perbit.Plan.of(spec.replace("?", f"{knob:.6g}"), small=None)
        return perbit.dumps(tensors, plan, seed=0)

    return encode


def at_error(tensors: Tensors, encode: Coder, target: float, seen: dict[float, Point]) -> Point | None:
    """The frame with this error, between two close points; None if the codec cannot reach it. `seen` spares frames made before."""
    scale = math.sqrt(peers.energy(tensors) / peers.n_values(tensors))

    def point(octave: float) -> Point:
        if octave not in seen:
            knob = scale * 2**octave
            frame = encode(tensors, knob)
            seen[octave] = Point(knob, len(frame), peers.decibels(tensors, perbit.loads(frame)))
        return seen[octave]

    fine = coarse = 0.0
    while point(fine).db > target and fine > -OCTAVES:
        fine -= 1
    while point(coarse).db < target and coarse < OCTAVES:
        coarse += 1
    if not point(fine).db <= target <= point(coarse).db:
        return None
    for _ in range(MOST_HALVINGS):
        if point(coarse).db - point(fine).db < CLOSE:
            break
        middle = (fine + coarse) / 2
        fine, coarse = (middle, coarse) if point(middle).db <= target else (fine, middle)
    is_jump = point(coarse).db - point(fine).db >= CLOSE  # then no frame has this error: the next better one counts
    return point(fine) if is_jump else between(point(fine), point(coarse), target)


def between(fine: Point, coarse: Point, target: float) -> Point:
    """The point at this error on the line through two, for logarithms of bytes and knob."""
    share = (target - fine.db) / (coarse.db - fine.db) if coarse.db > fine.db else 0.0
    knob, n_bytes = (
        math.exp((1 - share) * math.log(a) + share * math.log(b))
        for a, b in ((fine.knob, coarse.knob), (fine.n_bytes, coarse.n_bytes))
    )
    return Point(knob, n_bytes, target)


def peer_bytes(curve: Curve, target: float) -> float:
    """NNCodec's bytes at this error, between neighbouring points of its curve."""
    curve = sorted(curve, key=lambda p: p["db"])
    errors = [p["db"] for p in curve]
    if not errors[0] <= target <= errors[-1]:
        raise ValueError(f"NNCodec's points go from {errors[0]:.2f} to {errors[-1]:.2f} dB; {target} dB is outside")
    return math.exp(float(np.interp(target, errors, [math.log(p["bytes"]) for p in curve])))


def nearest(curve: Curve, target: float) -> dict[str, float]:
    return min(curve, key=lambda p: abs(p["db"] - target))


def recorded_seconds(curves: dict[str, Curve], target: float) -> Seconds:
    found = {mode: nearest(curve, target) for mode, curve in curves.items()}
    return {mode: {"encode": p["encode_seconds"], "decode": p["decode_seconds"]} for mode, p in found.items()}


def race(
    tensors: Tensors, encode: Coder, knob: float, curves: dict[str, Curve], target: float, repeats: int, live: bool
) -> Seconds:
    """Processor seconds of perbit and of NNCodec's two modes: all in turn, the fastest of `repeats` rounds."""
    runners: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "perbit": (partial(encode, tensors, knob), perbit.loads)
    }
    if live:
        for mode, curve in curves.items():
            qp = int(nearest(curve, target)["qp"])
            runners[mode] = partial(peers.encode, tensors, qp, mode), peers.decode
    best: Seconds = {name: {"encode": math.inf, "decode": math.inf} for name in runners}
    for _ in range(repeats):
        for name, (compress, decompress) in runners.items():
            frame, seconds = peers.timed(compress, 1)
            best[name]["encode"] = min(best[name]["encode"], seconds)
            best[name]["decode"] = min(best[name]["decode"], peers.timed(partial(decompress, frame), 1)[1])
    return best if live else best | recorded_seconds(curves, target)


def compare(
    name: str, tensors: Tensors, encode: Coder, curves: dict[str, Curve], repeats: int, live: bool
) -> list[dict[str, Any]]:
    """A row for each error."""
    rows = []
    seen: dict[float, Point] = {}
    n, megabytes = peers.n_values(tensors), 4e-6 * peers.n_values(tensors)
    for target in TARGETS["update" if "update" in name else "gradient"]:
        row: dict[str, Any] = {"recording": name, "values": n, "db": target}
        theirs = {mode: peer_bytes(curve, target) for mode, curve in curves.items()}
        row |= {f"{mode}_bits_per_value": 8 * size / n for mode, size in theirs.items()}
        found = at_error(tensors, encode, target, seen)
        if found is not None:
            seconds = race(tensors, encode, found.knob, curves, target, repeats, live)
            row |= {"knob": found.knob, "reached_db": found.db, "bits_per_value": 8 * found.n_bytes / n}
            row |= {f"{way}_mb_per_second": megabytes / seconds["perbit"][way] for way in ("encode", "decode")}
            for mode, size in theirs.items():
                row[f"bytes_by_{mode}"] = found.n_bytes / size
                for way in ("encode", "decode"):
                    row[f"{way}_speed_by_{mode}"] = seconds[mode][way] / seconds["perbit"][way]
        rows.append(row)
    return rows


COLUMNS = {
    "bits_per_value": "bits",
    "plain_bits_per_value": "plain",
    "optimised_bits_per_value": "optim.",
    "bytes_by_plain": "/ plain",
    "bytes_by_optimised": "/ optim.",
    "encode_mb_per_second": "enc MB/s",
    "encode_speed_by_plain": "x plain",
    "encode_speed_by_optimised": "x optim.",
    "decode_mb_per_second": "dec MB/s",
    "decode_speed_by_plain": "x plain",
    "decode_speed_by_optimised": "x optim.",
}


def print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        cells = (f"{row[key]:>10.4g}" if key in row else f"{'-':>10}" for key in COLUMNS)
        print(f"{row['recording']:<22}{row['db']:>7g}" + "".join(cells), flush=True)


def means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The geometric mean and the largest of each ratio of bytes, over all rows."""
    out: dict[str, float] = {}
    for key in ("bytes_by_plain", "bytes_by_optimised"):
        ratios = [row[key] for row in rows if key in row]
        if ratios:
            out |= {f"mean_{key}": math.exp(float(np.mean(np.log(ratios)))), f"largest_{key}": max(ratios)}
    return out


def is_installed() -> bool:
    try:
        peers.nncodec()
    except ModuleNotFoundError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", metavar="RECORDING", help="names in results/rd_peers.json")
    parser.add_argument("--spec", default="rd(step=?)", help="with ? for its step size (default rd(step=?))")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of so many runs counts (default 3)")
    parser.add_argument("--peers", type=Path, default=peers.RESULTS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    known = json.loads(options.peers.read_text(encoding="utf-8"))
    perbit.set_threads(1)
    live = is_installed()
    timing = "measured in this run" if live else f"from {options.peers}, since NNCodec is not installed"
    print(f"NNCodec {known['version']}, its speed {timing}")
    print(f"{options.spec:<22}{'dB':>7}" + "".join(f"{title:>10}" for title in COLUMNS.values()))
    head = {"spec": options.spec, "peer": f"NNCodec {known['version']}", "peer_speed": timing}
    rows: list[dict[str, Any]] = []
    for path in peers.recordings(options.recordings or list(known["recordings"])):
        asked = known["recordings"].get(path.stem)
        if asked is None or asked["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest():
            sys.exit(f"{options.peers} has no points of this {path.name}: python benchmarks/rd_peers.py {path.stem}")
        tensors = peers.large_tensors(path)
        found = compare(path.stem, tensors, coder(options.spec), asked["curves"], options.repeats, live)
        print_rows(found)
        rows += found
        peers.write_json(options.output, {**head, **means(rows), "rows": rows})
    print(", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in means(rows).items()))


if __name__ == "__main__":
    main()
