"""From runs to rows: what each method reached and what it sent, over all seeds; and which spec to use."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perbit.sim import verdicts
from perbit.sim.compare.config import Comparison
from perbit.sim.federated import ledger
from perbit.sim.federated.runs import Outcome
from perbit.sim.federated.settings import Method

POINTS_LOST = 0.01  # a recommended method stays this close to float32
LEVEL = 0.05  # how often chance may be taken for a difference


@dataclass(frozen=True)
class Row:
    """One method. Bytes are per run (the mean over seeds); sizes are those of real frames."""

    method: Method
    accuracy: float
    accuracy_sd: float | None  # None: a single seed
    mb_up: float
    mb_down: float
    bits_per_parameter: float  # up, for each client and round
    times_less: float  # uplink, against float32
    encode_ms: float  # measured, one client's message
    decode_ms: float  # measured, the same message at the server
    diverged: bool
    finals: tuple[float, ...] = ()  # accuracies, seed by seed

    @property
    def accuracy_text(self) -> str:
        if self.diverged:
            return "diverged"
        return f"{self.accuracy:.1%}" + ("" if self.accuracy_sd is None else f" ± {100 * self.accuracy_sd:.1f}")


def rows(comparison: Comparison, outcomes: Sequence[Outcome], folders: Sequence[Path]) -> list[Row]:
    """One row a method; outcomes and folders come method by method, seed by seed."""
    n_seeds = len(comparison.seeds)
    groups = [range(i, i + n_seeds) for i in range(0, len(outcomes), n_seeds)]
    yardstick = _yardstick(comparison, outcomes, groups)
    made = []
    for method, group in zip(comparison.methods, groups, strict=True):
        of = [outcomes[i] for i in group]
        up = statistics.fmean(outcome["bytes_up"] for outcome in of)
        messages = comparison.task.present * max(1, sum(outcome["done"] for outcome in of)) / n_seeds
        final = [outcome["history"][-1]["accuracy"] for outcome in of]
        encode, decode = _milliseconds([folders[i] for i in group])
        made.append(
            Row(
                method,
                statistics.fmean(final),
                statistics.stdev(final) if n_seeds > 1 else None,
                up / 1e6,
                statistics.fmean(outcome["bytes_down"] for outcome in of) / 1e6,
                8 * up / messages / of[0]["n_parameters"],
                yardstick * messages / up if up else 0.0,
                encode,
                decode,
                any(outcome["diverged"] for outcome in of),
                tuple(final),
            )
        )
    return made


def _yardstick(comparison: Comparison, outcomes: Sequence[Outcome], groups: list[range]) -> float:
    """Bytes of a float32 message: those of the uncompressed method, or four for each value if none was run."""
    for method, group in zip(comparison.methods, groups, strict=True):
        outcome = outcomes[group[0]]
        if method.is_float32 and outcome["done"]:
            return float(outcome["bytes_up"] / outcome["done"] / comparison.task.present)
    return float(4 * outcomes[0]["n_values"])


def _milliseconds(folders: Sequence[Path]) -> tuple[float, float]:
    """Median measured times of one message: a client's encoding, the server's decoding."""
    encode: list[float] = []
    decode: list[float] = []
    for folder in folders:
        for clock in ledger.read(folder / "timings.jsonl"):
            encode += clock["encode"].values()
            decode.append(clock["decode"] / len(clock["encode"]))
    return (1e3 * statistics.median(encode), 1e3 * statistics.median(decode)) if encode else (0.0, 0.0)


def recommended(made: Sequence[Row]) -> Row | None:
    """The method that sends least within a point of float32; if there is none, the most accurate."""
    finished = [row for row in made if not row.diverged and not row.method.is_float32]
    reference = _reference(made)
    close = [row for row in finished if reference and row.accuracy >= reference.accuracy - POINTS_LOST]
    if close:
        return min(close, key=lambda row: row.mb_up)
    return max(finished, key=lambda row: (round(row.accuracy, 3), -row.mb_up), default=None)


def advice(made: Sequence[Row]) -> str:
    """One sentence: which spec to use."""
    best, reference = recommended(made), _reference(made)
    if best is None:
        return "No compressed method finished training: try a smaller rate, or gentler specs."
    fewer = f"{best.times_less:.0f} × fewer uplink bytes"
    if reference is None:
        return f"Use {_named(best)}: the best accuracy, {best.accuracy:.1%}, with {fewer} than float32."
    if best.accuracy < reference.accuracy - POINTS_LOST:
        closest = f"the closest is {_named(best)} with {best.accuracy:.1%} and {fewer}"
        return f"No method stays within a point of float32's {reference.accuracy:.1%}; {closest}."
    said = f"Use {_named(best)}: {best.accuracy:.1%} against float32's {reference.accuracy:.1%}, with {fewer}."
    return f"{said} {told_apart(best, reference)}"


def told_apart(row: Row, other: Row) -> str:
    """One sentence: whether the seeds tell two methods apart (one-sided paired t-test, level .05)."""
    n = len(row.finals)
    if n < 2:
        return "One seed: a difference of a point or two may be chance."
    away = verdicts.differences(row.finals, other.finals)
    for sign, word in ((1, "above"), (-1, "below")):
        p = verdicts.chance_of_more([sign * d for d in away])
        if p < LEVEL:
            return f"Paired over {n} seeds it is {word} {other.method.name} (p = {p:.3f})."
    return f"{n} seeds do not tell the two apart."


def _reference(made: Sequence[Row]) -> Row | None:
    return next((row for row in made if row.method.is_float32 and not row.diverged), None)


def _named(row: Row) -> str:
    down = f" up and {row.method.down_text} down" if row.method.down_text != "raw" else ""
    whole = ", over the whole model" if row.method.whole_model else ""
    others = "".join(f", {spec} for {rule}" for rule, spec in row.method.rules.items())
    return f"{row.method.up_text}{others}{down} ({row.method.protocol}{whole})"


HEAD = ("method", "accuracy", "MB up", "MB down", "bits/param", "× less", "enc ms", "dec ms")


def cells(row: Row) -> tuple[str, ...]:
    """A row as texts, in the order of HEAD."""
    return (
        row.method.name,
        row.accuracy_text,
        f"{row.mb_up:.3f}",
        f"{row.mb_down:.3f}",
        f"{row.bits_per_parameter:.3f}",
        f"{row.times_less:.1f}" if row.times_less < 100 else f"{row.times_less:.0f}",
        f"{row.encode_ms:.2f}",
        f"{row.decode_ms:.2f}",
    )


def table(made: Sequence[Row]) -> str:
    """For the terminal: names to the left, numbers to the right."""
    lines = [HEAD, *map(cells, made)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def as_json(comparison: Comparison, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The results file: the same for the same seeds, to the last byte; measured times are elsewhere."""
    return {"title": comparison.title, "seeds": list(comparison.seeds), "runs": list(outcomes)}
