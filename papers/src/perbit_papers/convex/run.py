"""One run: an algorithm on a problem, with every frame encoded, counted and decoded. The result is a ledger."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.channels.frames import overhead
from perbit.errors import PerbitError
from perbit.protocols.protocol import Client, Protocol, Server
from perbit.randomness import fold
from perbit_papers.convex.problem import F64, Problem

I64 = NDArray[np.int64]
Counts = dict[str, I64]  # per round
COUNTED = ("bytes_up", "bytes_down", "header_bytes", "frames", "resets")


@dataclass(frozen=True)
class Settings:
    """How to run: batch 0 means full gradients, participation is each client's chance to take part in a round."""

    rounds: int
    step: float
    batch: int = 0
    participation: float = 1.0
    seed: int = 0
    evaluations: int = 200
    average: bool = False  # also evaluate the mean of all iterates (Polyak and Ruppert)

    def evaluated(self, done: int) -> bool:
        """Whether the loss is measured after so many rounds: evenly, and after the last."""
        every = max(1, self.rounds // self.evaluations)
        return done % every == 0 or done == self.rounds


@dataclass(frozen=True, eq=False)
class ConvexProgress:
    """A run between two rounds: everything that is needed to go on."""

    done: int
    server: Server
    clients: tuple[Client, ...]
    counts: Counts
    evaluated: tuple[tuple[int, float], ...]
    evaluated_mean: tuple[tuple[int, float], ...] = ()
    mean: F64 | None = None


@dataclass(frozen=True, eq=False)
class Ledger:
    """What a run cost and what it achieved."""

    algorithm: str
    settings: Settings
    best_loss: float
    rounds: list[int]
    loss: list[float]
    counts: Counts
    model: F64 = field(repr=False)
    mean_loss: list[float] = field(default_factory=list)

    @property
    def excess(self) -> list[float]:
        """Loss above the optimum's, at `rounds`."""
        return [value - self.best_loss for value in self.loss]

    @property
    def n_bytes(self) -> int:
        """Everything sent in both directions."""
        return int(self.counts["bytes_up"].sum() + self.counts["bytes_down"].sum())

    def bytes_until(self, rounds: int) -> int:
        """Bytes of the first rounds, both directions."""
        return int(self.counts["bytes_up"][:rounds].sum() + self.counts["bytes_down"][:rounds].sum())

    def stationary(self, share: float = 0.5) -> float:
        """Mean excess loss over the last part of the evaluations."""
        tail = self.excess[-max(1, int(len(self.excess) * share)) :]
        return float(np.mean(tail))

    def to_json(self, per_round: bool = True) -> dict[str, Any]:
        """Plain data; the model as hexadecimal floats, so that two runs can be compared to the last bit."""
        result: dict[str, Any] = {
            "algorithm": self.algorithm,
            "settings": asdict(self.settings),
            "best_loss": self.best_loss,
            "rounds": self.rounds,
            "loss": [_json_float(value) for value in self.loss],
            "excess": [_json_float(value) for value in self.excess],
            "bytes": [self.bytes_until(done) for done in self.rounds],
            "totals": {name: int(self.counts[name].sum()) for name in COUNTED},
        }
        if self.mean_loss:
            result["mean_excess"] = [_json_float(value - self.best_loss) for value in self.mean_loss]
        if per_round:
            result["per_round"] = {name: self.counts[name].tolist() for name in COUNTED}
            result["model"] = [float(value).hex() for value in self.model]
        return result


def _json_float(value: float) -> float | None:
    return value if math.isfinite(value) else None


def start(problem: Problem, protocol: Protocol, settings: Settings) -> ConvexProgress:
    """Before the first round: the model is zero everywhere."""
    first = np.zeros(problem.n_features, np.float32)
    server, clients = protocol.init(first, problem.n_clients)
    counts = {name: np.zeros(settings.rounds, np.int64) for name in COUNTED}
    loss = problem.loss(server.model)
    return ConvexProgress(
        0, server, tuple(clients), counts, ((0, loss),), ((0, loss),) if settings.average else (), server.model
    )


def run(
    problem: Problem,
    protocol: Protocol,
    settings: Settings,
    *,
    progress: ConvexProgress | None = None,
    after_round: Callable[[ConvexProgress], None] = lambda _: None,
) -> Ledger:
    """All rounds, or those still to do; `after_round` sees the run grow (progress bars, checkpoints).

    >>> from perbit.protocols import presets
    >>> from perbit_papers.convex import synthetic
    >>> ledger = run(synthetic(n_clients=2, n_features=3), presets.sgd(), Settings(rounds=50, step=0.5))
    >>> ledger.excess[-1] < 1e-3, int(ledger.counts["frames"][-1])
    (True, 4)
    """
    progress = progress or start(problem, protocol, settings)
    while progress.done < settings.rounds:
        progress = one_round(problem, protocol, settings, progress)
        after_round(progress)
        if not np.isfinite(progress.evaluated[-1][1]):
            break
    rounds, loss = (list(column) for column in zip(*progress.evaluated, strict=True))
    mean_loss = [value for _, value in progress.evaluated_mean]
    return Ledger(
        protocol.name, settings, problem.best_loss, rounds, loss, progress.counts, progress.server.model, mean_loss
    )


def one_round(problem: Problem, protocol: Protocol, settings: Settings, now: ConvexProgress) -> ConvexProgress:
    """Deliver, compute, respond, advance; a diverged run stops being computed and is marked with an infinite loss."""
    done, seed = now.done, fold(settings.seed, now.done)
    rng = np.random.default_rng([settings.seed, done])
    present = _present(rng, problem.n_clients, settings.participation)
    clients, server = list(now.clients), now.server
    try:
        with np.errstate(over="raise", invalid="raise"):
            server = _deliver(protocol, server, clients, present, seed, now.counts, done)
            directions = _directions(problem, protocol, settings, clients, rng)
            frames = {}
            for i in present:
                frames[i], clients[i] = protocol.respond(clients[i], directions[i], seed)
            server = protocol.advance(server, frames, 1.0 if protocol.local_steps else settings.step, seed)
    except (PerbitError, FloatingPointError):  # numbers beyond float32 cannot be sent
        return replace(now, done=settings.rounds, evaluated=(*now.evaluated, (done + 1, math.inf)))
    now.counts["bytes_up"][done] = sum(map(len, frames.values()))
    now.counts["frames"][done] += len(frames)
    now.counts["header_bytes"][done] += sum(map(overhead, frames.values()))
    return _evaluate(problem, settings, replace(now, done=done + 1, server=server, clients=tuple(clients)))


def _evaluate(problem: Problem, settings: Settings, now: ConvexProgress) -> ConvexProgress:
    mean = now.mean
    if settings.average and mean is not None:
        mean = mean + (now.server.model - mean) / (now.done + 1)
        now = replace(now, mean=mean)
    if not settings.evaluated(now.done):
        return now
    with np.errstate(over="ignore", invalid="ignore"):
        now = replace(now, evaluated=(*now.evaluated, (now.done, problem.loss(now.server.model))))
        if settings.average and mean is not None:
            now = replace(now, evaluated_mean=(*now.evaluated_mean, (now.done, problem.loss(mean))))
    return now


def _present(rng: np.random.Generator, n_clients: int, participation: float) -> list[int]:
    if participation >= 1:
        return list(range(n_clients))
    while not (present := np.flatnonzero(rng.random(n_clients) < participation)).size:
        pass
    return [int(i) for i in present]


def _deliver(
    protocol: Protocol, server: Server, clients: list[Client], present: list[int], seed: int, counts: Counts, done: int
) -> Server:
    server, delivered = protocol.deliver_all(server, clients, present, seed)
    for i, got in delivered.items():
        clients[i] = got.client
        counts["bytes_down"][done] += sum(map(len, got.frames))
        counts["frames"][done] += len(got.frames)
        counts["header_bytes"][done] += sum(map(overhead, got.frames))
        counts["resets"][done] += got.was_reset
    return server


def _directions(
    problem: Problem, protocol: Protocol, settings: Settings, clients: list[Client], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Gradients at the clients' points, or the way back from where local steps lead."""
    points = np.stack([client.point for client in clients]).astype(np.float64)
    if not protocol.local_steps:
        return problem.gradients(points, _rows(problem, settings, rng)).astype(np.float32)
    local = points
    for _ in range(protocol.local_steps):
        local = local - settings.step * problem.gradients(local, _rows(problem, settings, rng))
    return (points - local).astype(np.float32)


def _rows(problem: Problem, settings: Settings, rng: np.random.Generator) -> I64 | None:
    if not settings.batch:
        return None
    return rng.integers(0, problem.n_rows, (problem.n_clients, settings.batch))
