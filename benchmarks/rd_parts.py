"""What each part of the codec `rd` is worth: bytes at the same error without it, over those of the whole codec; and what the whole costs in time.

    python benchmarks/rd_parts.py [RECORDING …]        six recordings by default; writes results/rd_parts.json

A part is switched off by putting something simpler in the place of a function of the codec; steps are found by bisection, as in benchmarks/rd.py.
Bytes are those of real messages. The exception is the scalar quantizer: its messages have the length that an ideal code of single levels would give,
with the table and the means of cells for nothing, and its values reach the decoder by another way. Seconds are processor time on one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import rd_peers as peers
from numpy.typing import NDArray
from rd import CLOSE, Coder, Point, at_error, coder
from rd_peers import Tensors

import perbit
from perbit.coding.bits import Reader, Writer
from perbit.coding.families.rd import factors, parts, planes, streams, tensor, trellis
from perbit.coding.families.rd.factors import Choice, Found
from perbit.coding.families.rd.trellis import SLOPE
from perbit.kernels import unfused
from perbit.kernels.api import F32

RESULTS = Path("results/rd_parts.json")
RECORDINGS = (
    "cnn_cifar10_step400",
    "cnn_update_late",
    "resnet20_cifar10",
    "resnet20_update",
    "gpt_shakespeare",
    "lstm_update",
)
TARGETS = (-13.0, -10.0, -5.0, -2.5)  # decibels
WHOLE, PLAIN = "rd(step=?)", "uniform(4) | rans"
SPEED_AT = -10.0  # decibels
SCALAR_STEP = 1.69  # in steps of the trellis: the same error
MOST_LEVELS = 4096
SAMPLE = 1 << 16

Patches = Sequence[Any]


@dataclass(frozen=True)
class Variant:
    """The codec without one part: what stands in for its functions, and how messages are made."""

    title: str
    instead: Callable[[], Patches] = tuple
    encoder: Callable[[], Coder] = partial(coder, WHOLE)


def first_partners() -> Patches:
    """Right vectors are those of the components as found, whatever becomes of the left ones."""
    found: list[Choice | None] = []
    whole = Found.choice

    def choice(self: Found, step: float) -> tuple[Choice | None, float, float]:
        chosen = whole(self, step)
        found[:] = chosen[:1]
        return chosen

    def partners(left: F32, matrix: F32) -> F32:
        assert found[0] is not None
        return found[0].left @ matrix

    return patch.object(Found, "choice", choice), patch.object(factors, "best_partners", partners)


def own_steps() -> Coder:
    """Messages whose tensors all have the same error relative to their own energy. The knob is this error, relative to the root mean square."""
    seen: dict[str, dict[float, Point]] = {}

    def encode(tensors: Tensors, knob: float) -> bytes:
        scale = math.sqrt(peers.energy(tensors) / peers.n_values(tensors))
        target = min(20 * math.log10(knob / scale), -CLOSE)
        rules = {name: f"rd({step_for(name, x, target):.6g})" for name, x in tensors.items()}
        return perbit.dumps(tensors, perbit.Plan.of(WHOLE.replace("?", "1"), rules, small=None), seed=0)

    def step_for(name: str, x: NDArray[Any], target: float) -> float:
        found = at_error({name: x}, coder(WHOLE), target, seen.setdefault(name, {}))
        if found is None:
            raise ValueError(f"{name} cannot be coded with an error of {target:.2f} dB")
        return found.knob

    return encode


class ScalarPart:
    """In the place of `TrellisPart`: a scalar quantizer that weighs errors against bits too, and so has a dead zone."""

    sent: list[F32] = []  # noqa: RUF012 the other way to the decoder, shared by all

    def __init__(self, likely: F32, largest: float) -> None:
        sample = likely[:: max(1, likely.size // SAMPLE)]
        self.points = SCALAR_STEP * np.arange(MOST_LEVELS)
        self.rates = np.zeros(MOST_LEVELS)
        for _ in range(4):
            levels = self._levels(sample)
            counts = np.bincount(levels, minlength=MOST_LEVELS)
            self.rates = np.log2((sample.size + 1) / (counts + 0.1)) + (np.arange(MOST_LEVELS) > 0)
            means = np.bincount(levels, np.abs(sample), MOST_LEVELS) / np.maximum(counts, 1)
            self.points[1:] = np.where(counts > 8, means, SCALAR_STEP * np.arange(MOST_LEVELS))[1:]
        self.levels: list[NDArray[np.int64]] = []
        self.values: list[F32] = []

    def _levels(self, values: F32) -> NDArray[np.int64]:
        """Of the nearest level, the one below and zero, the one with the least error plus rate."""
        size = np.abs(values).astype(np.float64)
        nearest = np.minimum(np.rint(size / SCALAR_STEP), MOST_LEVELS - 1).astype(np.int64)
        options = np.stack([nearest, np.maximum(nearest - 1, 0), np.zeros_like(nearest)])
        costs = np.square(size - self.points[options]) + SLOPE * self.rates[options]
        best: NDArray[np.int64] = np.take_along_axis(options, costs.argmin(axis=0)[None], axis=0)[0]
        return best

    def add(self, *pieces: F32) -> None:
        for piece in pieces:
            self.levels.append(self._levels(piece))
            self.values.append((np.sign(piece) * self.points[self.levels[-1]]).astype(np.float32))

    def decoded(self, piece: int) -> F32:
        return self.values[piece]

    def error(self, pieces: Sequence[F32]) -> float:
        errors = (float(np.square(x - y, dtype=np.float64).sum()) for x, y in zip(pieces, self.values, strict=True))
        return sum(errors)

    def write(self, columns: int, block: int, out: Writer) -> None:
        """Append as many bytes as the entropy of levels and signs in each block; the first of them say where the values are."""
        levels = np.concatenate(self.levels)
        bits = sum(entropy(levels[lo : lo + block]) for lo in range(0, levels.size, block))
        out.raw(b"\1")
        out.section(len(self.sent).to_bytes(4, "little").ljust(math.ceil(bits / 8), b"\0"))
        self.sent.append(np.concatenate(self.values))

    @classmethod
    def read(cls, src: Reader, columns: int, block: int, step: float, out: F32, pieces: Sequence[F32]) -> None:
        if src.byte("kind of part"):
            out[:] = cls.sent[int.from_bytes(bytes(src.section("where")[:4]), "little")] * np.float32(step)
        else:
            out.fill(0)

    @classmethod
    def encoder(cls) -> Coder:
        def encode(tensors: Tensors, knob: float) -> bytes:
            cls.sent.clear()
            return coder(WHOLE)(tensors, knob)

        return encode


def entropy(levels: NDArray[np.int64]) -> float:
    """The bits of an ideal code for levels and signs, one by one."""
    counts = np.bincount(levels)
    counts = counts[counts > 0]
    return float(counts @ np.log2(levels.size / counts)) + int(np.count_nonzero(levels))


def without_shifts(*arguments: Any, with_shifts: bool) -> trellis.Trellis:
    return fit(*arguments, with_shifts=False)


fit = trellis.fit
VARIANTS = (
    Variant("the whole codec"),
    Variant("no low rank", encoder=partial(coder, "rd(step=?, rank=0)")),
    Variant("right vectors not fitted again", first_partners),
    Variant("no transform of kernels", lambda: [patch.object(planes, "is_worth_it", lambda energies: False)]),
    Variant("no classes of planes", lambda: [patch.object(tensor, "CLASSES", 1)]),
    Variant(
        "no adaptive coder",
        lambda: [
            patch.object(streams, "_neighbours_tell", lambda levels, columns: False),
            patch.object(streams, "_FEW_BYTES", -1),
        ],
    ),
    Variant("no positions of rare levels", lambda: [patch.object(streams, "_SPARSE_SHARE", 0.0)]),
    Variant("no means of cells", lambda: [patch.object(trellis, "fit", without_shifts)]),
    Variant("each tensor at the same error", encoder=own_steps),
    Variant(
        "scalar quantizer, ideal code",
        lambda: [patch.object(parts, "TrellisPart", ScalarPart), patch.object(parts, "_read", ScalarPart.read)],
        ScalarPart.encoder,
    ),
)


def points(tensors: Tensors, variant: Variant) -> list[Point | None]:
    """The message of a variant at every error."""
    with unfused(), ExitStack() as stack:
        for each in variant.instead():
            stack.enter_context(each)
        encode, seen = variant.encoder(), dict[float, Point]()
        return [at_error(tensors, encode, target, seen) for target in TARGETS]


def compare(name: str, tensors: Tensors) -> list[dict[str, Any]]:
    """A row for each variant and error."""
    rows: list[dict[str, Any]] = []
    whole = points(tensors, VARIANTS[0])
    for variant in VARIANTS:
        found = whole if variant is VARIANTS[0] else points(tensors, variant)
        for target, own, best in zip(TARGETS, found, whole, strict=True):
            row: dict[str, Any] = {"recording": name, "variant": variant.title, "db": target}
            if own and best:
                row |= {"reached_db": own.db, "bits_per_value": 8 * own.n_bytes / peers.n_values(tensors)}
                row["is_fair"] = max(abs(own.db - target), abs(best.db - target)) <= CLOSE
                row["bytes_by_whole"] = own.n_bytes / best.n_bytes
            rows.append(row)
        print_rows(variant.title, rows[-len(TARGETS) :])
    return rows


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """A star: with or without the part no frame has just this error, and the next better one counts."""
    cells = (f"{row.get('bytes_by_whole', math.nan):>9.3f}{' ' if row.get('is_fair') else '*'}" for row in rows)
    print(f"  {title:<34}" + "".join(cells), flush=True)


def speed(tensors: Tensors, repeats: int) -> dict[str, Any]:
    """Processor seconds of `rd`, by step and by bits, over those of plain quantization in 4 bits: in turn, the fastest of several runs."""
    found = at_error(tensors, coder(WHOLE), SPEED_AT, {})
    assert found is not None
    bits = 8 * found.n_bytes / peers.n_values(tensors)
    specs = {"step": f"rd({found.knob:.6g})", "bits": f"rd(bits={bits:.4g})", "plain": PLAIN}
    seconds = {way: dict.fromkeys(specs, math.inf) for way in ("encode", "decode")}
    for _ in range(repeats):
        for key, spec in specs.items():
            frame, encode = peers.timed(partial(coder(spec), tensors, 0.0), 1)
            decode = peers.timed(partial(perbit.loads, frame), 1)[1]
            seconds["encode"][key] = min(seconds["encode"][key], encode)
            seconds["decode"][key] = min(seconds["decode"][key], decode)
    times = {
        f"{way}_by_{key}_times_plain": seconds[way][key] / seconds[way]["plain"]
        for way in seconds
        for key in ("step", "bits")
    }
    return {"specs": list(specs.values()), **times}


def said(times: dict[str, Any]) -> list[str]:
    ratios = {key.removesuffix("_times_plain"): times[key] for key in times if key.endswith("_times_plain")}
    return [f"{key.replace('_', ' ')} {ratio:.1f}" for key, ratio in ratios.items()]


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The geometric mean over recordings, for each variant and error; of rows that have just this error."""
    logs: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found = logs.setdefault(row["variant"], {}).setdefault(f"{row['db']:g}", [])
        if row.get("is_fair"):
            found.append(math.log(row["bytes_by_whole"]))
    return {
        title: {db: math.exp(sum(found) / len(found)) for db, found in by_error.items() if found}
        for title, by_error in logs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", metavar="RECORDING", default=RECORDINGS)
    parser.add_argument("--repeats", type=int, default=7, help="the fastest of so many runs counts (default 7)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    perbit.set_threads(1)
    rows: list[dict[str, Any]] = []
    speeds: dict[str, Any] = {}
    for path in peers.recordings(list(options.recordings)):
        tensors = peers.large_tensors(path)
        print(f"{path.stem:<36}" + "".join(f"{f'{target:g} dB':>10}" for target in TARGETS))
        rows += compare(path.stem, tensors)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        speeds[path.stem] = {"sha256": digest, **speed(tensors, options.repeats)}
        print(f"  seconds over those of {PLAIN}: " + ", ".join(said(speeds[path.stem])))
        peers.write_json(options.output, {"means": means(rows), "speed": speeds, "rows": rows})
    print(f"{'geometric means':<36}" + "".join(f"{f'{target:g} dB':>10}" for target in TARGETS))
    for title, by_target in means(rows).items():
        print(f"  {title:<34}" + "".join(f"{by_target.get(f'{target:g}', math.nan):>9.3f} " for target in TARGETS))


if __name__ == "__main__":
    main()
