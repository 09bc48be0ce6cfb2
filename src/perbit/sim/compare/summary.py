"""From runs to rows: what each method reached and what it sent, over all seeds; and which spec to use."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perbit.sim import verdicts
from perbit.sim.compare import recipe
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
    metric: str = ""  # the user's own, in place of accuracy
    n_test: int = 0
    why: str = ""  # it diverged
    trivial: float | None = None  # the accuracy of always giving the commonest answer
    per_bit: float = 0.0  # the mean accuracy while the bits were sent that every method sent
    own_tests: bool = False  # each seed has drawn a test part of its own

    @property
    def accuracy_text(self) -> str:
        if self.diverged:
            return "diverged"
        return self.shown(self.accuracy) + (
            "" if self.accuracy_sd is None else f" ± {self.shown(self.accuracy_sd, '')}"
        )

    def shown(self, value: float, unit: str = "%") -> str:
        """A value of the metric for people."""
        return f"{value:.4g}" if self.metric else f"{100 * value:.1f}{unit}"

    @property
    def may_lose(self) -> float:
        """What a recommended method may lose if this is float32."""
        return POINTS_LOST * abs(self.accuracy) if self.metric else POINTS_LOST


def rows(comparison: Comparison, outcomes: Sequence[Outcome], folders: Sequence[Path]) -> list[Row]:
    """One row a method; outcomes and folders come method by method, seed by seed."""
    n_seeds = len(comparison.seeds)
    groups = [range(i, i + n_seeds) for i in range(0, len(outcomes), n_seeds)]
    yardstick = _yardstick(comparison, outcomes, groups)
    common = min(outcome["bytes_up"] for outcome in outcomes)
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
                comparison.task.metric,
                of[0].get("n_test", 0),
                next((f"seed {outcome['seed']}, {outcome['why']}" for outcome in of if outcome["diverged"]), ""),
                None if comparison.task.metric else of[0].get("trivial_accuracy"),
                statistics.fmean(per_bit_accuracy(outcome["history"], common) for outcome in of),
                bool(comparison.task.test_share),
            )
        )
    return made


def per_bit_accuracy(history: Sequence[Mapping[str, Any]], n_bytes: int) -> float:
    """The area under accuracy against bytes sent up, as far as `n_bytes`, over that many: what a method makes of the first bits it sends.
    Between two evaluations the accuracy is that of the first.

    >>> per_bit_accuracy([{"accuracy": 0.1, "bytes_up": 0}, {"accuracy": 0.5, "bytes_up": 30}, {"accuracy": 0.9, "bytes_up": 80}], 100)
    0.46
    """
    ends = [*(point["bytes_up"] for point in history[1:]), n_bytes]
    pieces = zip(history, ends, strict=True)
    area = sum(point["accuracy"] * max(0, min(end, n_bytes) - point["bytes_up"]) for point, end in pieces)
    return float(round(area / n_bytes, 12)) if n_bytes else 0.0


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
    """The method that sends least within a point of float32; if there is none, the most accurate. None where nobody has learnt anything."""
    if not learnt(made):
        return None
    finished = [row for row in made if not row.diverged and not row.method.is_float32]
    reference = _reference(made)
    close = [row for row in finished if reference and row.accuracy >= reference.accuracy - reference.may_lose]
    if close:
        return min(close, key=lambda row: row.mb_up)
    return max(finished, key=lambda row: (round(row.accuracy, 3), -row.mb_up), default=None)


def target(made: Sequence[Row]) -> float | None:
    """The accuracy that a recommended method needs: a point below float32; None if float32 was not run to its end."""
    reference = _reference(made)
    return reference.accuracy - reference.may_lose if reference else None


def learnt(made: Sequence[Row]) -> bool:
    """Whether any method is more than a point above always giving the commonest answer."""
    return any(not row.diverged and (row.trivial is None or row.accuracy > row.trivial + POINTS_LOST) for row in made)


def advice(made: Sequence[Row]) -> str:
    """One sentence: which spec to use."""
    finished = [row for row in made if not row.diverged]
    if finished and finished[0].trivial is not None and not learnt(made):
        always = f"always giving the commonest answer scores {finished[0].trivial:.1%}"
        return (
            f"No recommendation: no method has learnt anything yet ({always}). Train for longer, or with another rate."
        )
    best, reference = recommended(made), _reference(made)
    if all(row.method.is_float32 for row in made):
        return 'Nothing was compressed: add a method with a spec, e.g. up = "rd(bits=0.3)".'
    if best is None:
        reason = next((f" {row.method.name}: {row.why}." for row in made if row.why), "")
        return f"No compressed method finished training.{reason or ' Try a smaller rate, or gentler specs.'}"
    fewer = f"{best.times_less:.0f} × fewer uplink bytes"
    if reference is None:
        lost = next((f" float32 itself diverged: {row.why}." for row in made if row.method.is_float32), "")
        return (
            f"Use {_named(best)}: the best {_what(best)}, {best.shown(best.accuracy)}, with {fewer} than float32.{lost}"
        )
    theirs = reference.shown(reference.accuracy)
    if best.accuracy < reference.accuracy - reference.may_lose:
        closest = f"the closest is {_named(best)} with {best.shown(best.accuracy)} and {fewer}"
        return f"No method stays within {_bound(best)} of float32's {theirs}; {closest}."
    said = f"Use {_named(best)}: {best.shown(best.accuracy)} against float32's {theirs}, with {fewer}."
    return f"{said} {told_apart(best, reference)}"


def grounds(made: Sequence[Row]) -> list[str]:
    """What the advice rests on: its rule, how uncertain it is, and what went wrong with methods that diverged."""
    lines = [f"{row.method.name} diverged: {row.why}." for row in made if row.why]
    best, reference = recommended(made), _reference(made)
    if best is None:
        return lines
    lines.append(
        f"The rule: of the compressed methods whose mean {_what(best)} is at most {_bound(best)} below float32's, the one that sends least up; "
        "if there is none, the most accurate."
    )
    lines.append(_evidence(best, reference))
    for where, rival in (("cheaper", _neighbour(made, best, -1)), ("dearer", _neighbour(made, best, 1))):
        if rival is not None:
            lines.append(f"Beside {rival.method.name}, the next {where}: {told_apart(best, rival)}")
    return lines


def _evidence(best: Row, reference: Row | None) -> str:
    """How many decisions stand behind a recommendation, and how far seeds differ."""
    n_seeds = len(best.finals)
    said = f"Behind it: {n_seeds} seed{'s' * (n_seeds > 1)}"
    if best.n_test:  # runs of earlier versions did not say
        own = "its own part of " if best.own_tests and n_seeds > 1 else ""
        said += f", each tested on {own}{best.n_test} samples: {n_seeds * best.n_test} decisions"
        said += "" if best.metric else f"; one sample is {100 / best.n_test:.2f} points of a seed"
    spreads = [
        f"{row.method.name} ± {row.shown(row.accuracy_sd, ' points')}"
        for row in (best, reference)
        if row and row.accuracy_sd is not None
    ]
    return f"{said}; standard deviation over seeds: {', '.join(spreads)}." if spreads else f"{said}."


def _neighbour(made: Sequence[Row], best: Row, side: int) -> Row | None:
    """The finished method that sends least more, or least less, up."""
    others = [row for row in made if not row.diverged and row is not best and not row.method.is_float32]
    beyond = [row for row in others if side * (row.mb_up - best.mb_up) > 0]
    return min(beyond, key=lambda row: side * row.mb_up, default=None)


def _what(row: Row) -> str:
    return row.metric or "accuracy"


def _bound(row: Row) -> str:
    return "1 %" if row.metric else "a point"


def text(made: Sequence[Row]) -> str:
    """The table and the complete advice: all that table.txt holds."""
    return f"{table(made)}\n\n{complete(made)}"


def complete(made: Sequence[Row]) -> str:
    """The advice, what it rests on, and the method to copy."""
    best = recommended(made)
    forms = recipe.everything(best.method) if best else {}
    parts = ["\n".join([advice(made), *grounds(made)]), *(f"{where}:\n\n{code}" for where, code in forms.items())]
    return "\n\n".join(parts) + "\n"


def told_apart(row: Row, other: Row) -> str:
    """One sentence: whether the seeds tell two methods apart (one-sided paired t-test, level .05)."""
    n = len(row.finals)
    if n < 2:
        return "One seed: a difference of a point or two may be chance."
    away = verdicts.differences(row.finals, other.finals)
    for sign, word in ((1, "above"), (-1, "below")):
        p = verdicts.chance_of_more([sign * d for d in away])
        if p < LEVEL:
            said = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
            return f"Paired over {n} seeds it is {word} {other.method.name} ({said})."
    return f"{n} seeds do not tell the two apart."


def _reference(made: Sequence[Row]) -> Row | None:
    return next((row for row in made if row.method.is_float32 and not row.diverged), None)


def _named(row: Row) -> str:
    down = f" up and {row.method.down_text} down" if row.method.down_text != "raw" else ""
    whole = ", over the whole model" if row.method.whole_model else ""
    others = "".join(f", {spec} for {rule}" for rule, spec in row.method.rules.items())
    return f"{row.method.up_text}{others}{down} ({row.method.protocol}{whole})"


HEAD = ("method", "accuracy", "MB up", "MB down", "bits/param", "× less", "enc ms", "dec ms", "per-bit")


def head(made: Sequence[Row]) -> tuple[str, ...]:
    """The names of the columns; the user's own metric has its own."""
    return (HEAD[0], made[0].metric or HEAD[1], *HEAD[2:])


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
        f"{row.per_bit:.1%}",
    )


def table(made: Sequence[Row]) -> str:
    """For the terminal: names to the left, numbers to the right."""
    lines = [head(made), *map(cells, made)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def as_json(comparison: Comparison, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The results file: the same for the same seeds, to the last byte; measured times are elsewhere."""
    return {"title": comparison.title, "seeds": list(comparison.seeds), "runs": list(outcomes)}
