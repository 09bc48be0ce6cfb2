"""`perbit convex`: algorithms side by side on a convex problem; table, figure, JSON; can be killed and resumed."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perbit.errors import PerbitError
from perbit.files import make_folder, write_atomically
from perbit.protocols import presets
from perbit.protocols.protocol import Protocol
from perbit_papers.convex import checkpoint, data, report
from perbit_papers.convex import run as convex_run
from perbit_papers.convex.problem import Kind, Problem
from perbit_papers.convex.run import ConvexProgress, Settings

SECONDS_BETWEEN_CHECKPOINTS = float(os.environ.get("PERBIT_CHECKPOINT_SECONDS") or 2)


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `perbit convex`."""
    command.add_argument("--data", default="synthetic", help="a LIBSVM or .npz file, or `synthetic` (default)")
    command.add_argument("--problem", choices=("least_squares", "logistic"), help="default: logistic for files")
    command.add_argument(
        "--algorithms", default="sgd,diana,mcm,artemis,dore", help="names from perbit.protocols.presets, with commas"
    )
    command.add_argument("--up", default=presets.ONE_LEVEL, help="codec of the clients' frames")
    command.add_argument(
        "--down", default=presets.ONE_LEVEL, help="codec of the server's frames, where they are compressed"
    )
    command.add_argument("--clients", "--workers", type=int, default=20)
    command.add_argument("--rounds", type=int, default=1000)
    command.add_argument("--batch", type=int, default=0, help="rows in a gradient; 0: all (default)")
    command.add_argument("--step", default="0.5/L", help="a number, a number over L (1/L), or `theory`")
    command.add_argument("--smoothness", choices=("spectral", "frobenius"), default="spectral", help="what L is")
    command.add_argument(
        "--participation", type=float, default=1.0, help="each client's chance to take part in a round"
    )
    command.add_argument("--heterogeneous", action="store_true", help="clients with different data")
    command.add_argument("--features", type=int, default=20, help="of the synthetic problem")
    command.add_argument("--rows", type=int, default=200, help="of each client of the synthetic problem")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument(
        "-o", "--output", type=Path, default=Path("convex"), help="folder for results (default: convex)"
    )
    command.add_argument("--resume", action="store_true", help="go on where a run with the same options was stopped")
    command.add_argument("--no-plot", action="store_true", help="draw no figure")
    command.add_argument("--json", action="store_true", help="print JSON for programs")


def run(options: argparse.Namespace) -> int:
    """Run every algorithm that is not done yet, then report."""
    problem = load_problem(options)
    protocols = {name: protocol(name, options) for name in options.algorithms.split(",")}
    make_folder(options.output)
    results = [_one(name, made, problem, options) for name, made in protocols.items()]
    everything = {"data": Path(options.data).name, "clients": problem.n_clients, "results": results}
    _write_json(options.output / "convex.json", everything)
    if not options.no_plot:
        report.plot(results, options.output / "convex.png", f"{Path(options.data).name}, {problem.kind}")
    if options.json:
        print(json.dumps(everything))
    else:
        print(report.table(results))
    return 0


def load_problem(options: argparse.Namespace) -> Problem:
    """The problem the options describe."""
    if options.clients < 1 or options.rounds < 1 or options.batch < 0 or not 0 < options.participation <= 1:
        raise PerbitError(
            "clients and rounds must be at least 1, batch at least 0, participation above 0 and at most 1"
        )
    if options.data == "synthetic":
        kind: Kind = options.problem or "least_squares"
        shape = (options.clients, options.rows, options.features)
        return data.synthetic(kind, *shape, heterogeneous=options.heterogeneous, seed=options.seed)
    x, y = data.load(Path(options.data))
    return data.prepare(x, y, options.problem or "logistic", options.clients, options.heterogeneous)


def protocol(name: str, options: argparse.Namespace) -> Protocol:
    """The preset of this name with the codecs of the options."""
    if name in ("sgd", "fedavg"):
        return presets.protocol_of(name)
    return presets.protocol_of(name, options.up, options.down if presets.preset_of(name).two_way else None)


def step_size(name: str, made: Protocol, problem: Problem, options: argparse.Namespace) -> float:
    """The step as a number."""
    L = problem.smoothness if options.smoothness == "spectral" else problem.smoothness_frobenius
    text = options.step.replace(" ", "")
    try:
        if text == "theory":
            return presets.step_bound(name, L, problem.n_clients, problem.n_features, made)
        return float(text[:-2]) / L if text.endswith("/L") else float(text)
    except ValueError:
        raise PerbitError(f"the step must be a number, a number over L, or `theory`, got {options.step!r}") from None


def _one(name: str, made: Protocol, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    settings = Settings(
        options.rounds, step_size(name, made, problem, options), options.batch, options.participation, options.seed
    )
    about = {name: str(value) for name, value in vars(options).items() if name not in _NOT_ABOUT} | {"algorithm": name}
    saved, finished = options.output / f"{name}.checkpoint.npz", options.output / f"{name}.json"
    if options.resume and finished.is_file():
        known = json.loads(finished.read_text())
        if known["about"] == about:
            return dict(known["result"])
    progress = checkpoint.restore(saved, about) if options.resume and saved.is_file() else None
    with _bar(name, settings.rounds, quiet=options.json) as show:
        keep = _Keeper(saved, about, show)
        ledger = convex_run(problem, made, settings, progress=progress, after_round=keep)
    result = ledger.to_json()
    _write_json(finished, {"about": about, "result": result})
    saved.unlink(missing_ok=True)
    return result


_NOT_ABOUT = ("run", "output", "resume", "json", "no_plot", "algorithms")


class _Keeper:
    """Writes a checkpoint every few seconds, and moves the progress bar."""

    def __init__(self, path: Path, about: dict[str, Any], show: Callable[[int], None]) -> None:
        self.path, self.about, self.show, self.last = path, about, show, time.monotonic()

    def __call__(self, progress: ConvexProgress) -> None:
        self.show(progress.done)
        if time.monotonic() - self.last >= SECONDS_BETWEEN_CHECKPOINTS:
            checkpoint.save(self.path, progress, self.about)
            self.last = time.monotonic()


class _bar:  # noqa: N801  used like a function
    """A progress bar on the terminal: rich if it is installed, dots of plain text if not, nothing if nobody looks."""

    def __init__(self, name: str, total: int, quiet: bool) -> None:
        self.name, self.total = name, total
        self.rich: Any = None
        self.shown = not quiet and sys.stderr.isatty()

    def __enter__(self) -> Callable[[int], None]:
        if not self.shown:
            return lambda done: None
        try:
            from rich.console import Console
            from rich.progress import Progress as Bar
        except ImportError:
            return self._plain
        bar = Bar(console=Console(stderr=True))
        task = bar.add_task(self.name, total=self.total)
        bar.start()
        self.rich = bar
        return lambda done: bar.update(task, completed=done)

    def _plain(self, done: int) -> None:
        if done * 100 // self.total != (done - 1) * 100 // self.total:
            print(f"\r{self.name}: {done * 100 // self.total} %", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.rich is not None:
            self.rich.stop()
        elif self.shown:
            print(file=sys.stderr)


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, lambda file: file.write(json.dumps(value).encode()))
