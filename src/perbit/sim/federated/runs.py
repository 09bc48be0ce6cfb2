"""One run: a task trained with a method, from the first round or from a checkpoint. Files are whole at every moment.

In the run's folder: ledger.jsonl (every message), timings.jsonl (measured seconds), with `statistics` also statistics.jsonl,
checkpoint.npz, at the end result.json.
Nothing in the ledger or in the result depends on time: the same seed gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perbit import gennorm
from perbit.channels import Layout, packing
from perbit.errors import DecodeError, EncodeError, StateMismatch
from perbit.files import FileError, write_atomically
from perbit.sim.federated import ledger, local, rounds, statistics, tensors, world
from perbit.sim.federated.rounds import Federation
from perbit.sim.federated.settings import Method, Task, with_defaults
from perbit.sim.federated.world import World
from perbit.sim.imports import OwnCodeError

SECONDS_BETWEEN_CHECKPOINTS = 1.0  # or more, so that with large memories they take ...
SHARE_OF_CHECKPOINTS = 0.05  # ... at most this share of the time
N_FITS, N_FITTED_TENSORS, MIN_FITTED = 20, 6, 100


class Point(NamedTuple):
    """What was reached after so many rounds, and the bytes that took."""

    round: int
    accuracy: float
    loss: float
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, eq=False)
class Progress:
    """A run between two rounds: everything that is needed to go on."""

    done: int
    history: tuple[Any, ...] = ()  # Points, as plain tuples
    fits: tuple[dict[str, Any], ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0
    ledger_position: int = 0
    timings_position: int = 0
    statistics_position: int = 0
    diverged: bool = False
    why: str = ""  # it did

    @property
    def last(self) -> Point:
        return Point(*self.history[-1])


Outcome = dict[str, Any]  # plain data, the same for the same seed
Watch = Callable[[Progress, Federation], None]


def run(
    task: Task,
    method: Method,
    seed: int,
    folder: Path,
    *,
    resume: bool = False,
    until: int | None = None,
    dump_frames: bool = False,
    with_statistics: bool = False,
    watch: Watch = lambda now, federation: None,
) -> Outcome:
    """All rounds, or those up to `until`; `watch` sees the run after every round."""
    about = {"task": asdict(task), "method": asdict(method), "seed": seed}
    known = _finished(folder, about) if resume else None
    if known is not None:
        return known
    place = world.build(task, seed)
    federation = Federation(method.make(), place, task.clients, seed)
    saved = folder / "checkpoint.npz"
    if resume and saved.is_file():
        now, federation.state = packing.restore(saved, (Progress, *rounds.STATE_TYPES), about)
    else:
        now = _tested(place, federation, Progress(0))
    _forget(folder / "result.json", *([] if resume else [saved, *folder.glob("frames/*.pbit")]))
    books = ledger.Lines(folder / "ledger.jsonl", now.ledger_position)
    times = ledger.Lines(folder / "timings.jsonl", now.timings_position)
    records = ledger.Lines(folder / statistics.FILE, now.statistics_position) if with_statistics else None
    recorder = statistics.Recorder(task, place, federation)
    last, due = min(task.rounds, until or task.rounds), time.monotonic() + SECONDS_BETWEEN_CHECKPOINTS
    while now.done < last and not now.diverged:
        is_looked_at = records is not None and recorder.is_due(now.done + 1)
        if is_looked_at:
            recorder.before(rounds.present(task, seed, now.done + 1)[0])
        now, update = _round(federation, place, task, seed, now, books, times, folder if dump_frames else None)
        if records is not None and is_looked_at and not now.diverged:
            records.append(recorder.after(now.done, update))
            now = replace(now, statistics_position=records.position)
        if not now.diverged and (now.done % task.evaluate_every == 0 or now.done == last):
            now = _tested(place, federation, now)
        watch(now, federation)
        if now.done == last or time.monotonic() >= due:
            began = time.monotonic()
            packing.save(saved, (now, federation.state), about)
            took = time.monotonic() - began
            due = began + max(SECONDS_BETWEEN_CHECKPOINTS, took / SHARE_OF_CHECKPOINTS)
    outcome = _outcome(about, place, federation, now)
    if now.done == task.rounds or now.diverged:
        write_atomically(folder / "result.json", lambda file: file.write(json.dumps(outcome).encode()))
        _forget(saved)
    return outcome


def _round(
    federation: Federation,
    place: World,
    task: Task,
    seed: int,
    now: Progress,
    books: ledger.Lines,
    times: ledger.Lines,
    dump: Path | None,
) -> tuple[Progress, dict[str, Any]]:
    book = ledger.Book(now.done + 1)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            clock, update = rounds.one_round(federation, place, task, seed, book)
    except StateMismatch:  # a fault of a codec or of ours, not of the training
        raise
    except (
        EncodeError,
        DecodeError,
    ) as error:  # numbers beyond float32 are neither sent nor taken: training has diverged
        return replace(now, diverged=True, why=f"round {book.round}, {error}"), {}
    books.append(book.lines)
    times.append([{"round": book.round, **asdict(clock)}])
    if dump:
        book.dump(dump / "frames")
    after = replace(
        now,
        done=book.round,
        fits=now.fits + _fits(task, book.round, update),
        bytes_up=now.bytes_up + book.n_bytes("up"),
        bytes_down=now.bytes_down + book.n_bytes("down"),
        ledger_position=books.position,
        timings_position=times.position,
    )
    return after, update


def _tested(place: World, federation: Federation, now: Progress) -> Progress:
    server = federation.server
    with np.errstate(over="ignore"):
        flat = server.flat.astype(np.float32)
    # What lossy codecs still owe may exceed a small variance, whose root would be NaN.
    flat[place.variances & (flat < 0)] = 0
    tensors.put(place.network, {**server.tensors, **Layout.of(place.first).split(flat)})
    point = Point(now.done, *local.test(place.network, place.data), now.bytes_up, now.bytes_down)
    if not math.isfinite(point.accuracy):
        why = f"round {now.done}, the server: the metric of the test is {point.accuracy}"
        if not now.history:
            raise OwnCodeError(f"the metric must be a finite number, and is {point.accuracy} before the first round")
        return replace(now, diverged=True, why=why)
    return replace(now, history=(*now.history, tuple(point)))


def _fits(task: Task, done: int, update: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """GenNorm fits of the largest tensors of one client's update, evenly through training."""
    if done % max(1, task.rounds // N_FITS):
        return ()
    filled = {name: np.count_nonzero(values) for name, values in update.items()}
    largest = sorted(filled, key=lambda name: -filled[name])[:N_FITTED_TENSORS]
    found = []
    for name in (name for name in update if name in largest and filled[name] >= MIN_FITTED):
        fitted = gennorm.fit(update[name])
        values = {"beta": fitted.dist.beta, "alpha": fitted.dist.alpha, "zero_mass": fitted.zero_mass}
        found.append({"round": done, "tensor": name, **{key: float(value) for key, value in values.items()}})
    return tuple(found)


def _outcome(about: dict[str, Any], place: World, federation: Federation, now: Progress) -> Outcome:
    model = federation.server.flat
    return {
        **about,
        "done": now.done,
        "diverged": now.diverged,
        "why": now.why,
        "n_parameters": place.n_parameters,
        "n_values": len(model),  # with float buffers
        "n_test": len(place.data.test),
        "history": [_plain(Point(*point)) for point in now.history],
        "bytes_up": now.bytes_up,
        "bytes_down": now.bytes_down,
        "fits": list(now.fits),
        "trivial_accuracy": local.trivial_accuracy(place.data),
        "model_sha256": hashlib.sha256(model.tobytes()).hexdigest(),
    }


def _plain(point: Point) -> dict[str, Any]:
    """JSON has no infinity: the loss of a diverged model is null."""
    return {**point._asdict(), "loss": point.loss if math.isfinite(point.loss) else None}


def _finished(folder: Path, about: dict[str, Any]) -> Outcome | None:
    """The outcome of the very same run, if it is done. What is done with other settings is not thrown away unasked."""
    try:
        known: Outcome = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        return None
    for part, value in about.items():
        if json.dumps(with_defaults(known.get(part), value)) != json.dumps(value):  # in order: rules
            raise FileError(
                f"{folder} holds a finished run with other settings ({part}); choose another folder, or discard it with --fresh"
            )
    return known


def _forget(*paths: Path) -> None:
    try:
        for path in paths:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot delete {error.filename}: {error.strerror}") from error
