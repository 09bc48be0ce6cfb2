"""Runs on the nodes of a Ray cluster that is there already. What they write comes to the driver as they go, so any of them can be lost."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perbit.errors import PerbitError
from perbit.files import FileError, make_folder, write_atomically
from perbit.sim.compare.pool import SECONDS_BETWEEN_LOOKS, Job, Report, Show, run_job
from perbit.sim.federated.runs import Outcome
from perbit.sim.imports import is_import_path

SECONDS_BETWEEN_POSTS = 5.0  # what a lost node costs at most, in progress
MAX_TRIES = 4
LOST = (NodeDiedError, OutOfMemoryError, WorkerCrashedError)
_LIBRARIES = ("perbit", "torch", "numpy")  # whose versions decide about bits
_NOT_SENT = ["perbit-runs", ".venv", ".git", "__pycache__"]


class Piece(NamedTuple):
    """A part of a file of a run: its bytes from `start` on, or None where the file is gone."""

    name: str
    start: int
    data: bytes | None


class News(NamedTuple):
    """What a run tells: where it is, or the files it has written. `at_try` says which try of the job tells it."""

    job: int
    at_try: int
    said: Report | list[Piece]


class Mailbox:
    """Where runs leave what they tell, until the driver fetches all of it at once. Neither side ever waits for the other."""

    def __init__(self) -> None:
        self.waiting: list[News] = []

    def put(self, news: News) -> None:
        self.waiting.append(news)

    def take(self) -> list[News]:
        taken, self.waiting = self.waiting, []
        return taken


def mailbox_here() -> Any:
    """A mailbox on the driver's own node: no other node takes it along when it goes."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(num_cpus=0)(Mailbox)
    return actor.options(scheduling_strategy=here).remote()


def run_all(jobs: Sequence[Job], address: str, show: Show) -> list[Outcome]:
    """All outcomes, in the order of the jobs; the first error stops everything. Whoever ends this process ends the runs."""
    _connect(jobs, address)
    try:
        return _Runs(jobs, show).all()
    except RayError as error:
        raise _explained(error) from None
    finally:
        ray.shutdown()


def _connect(jobs: Sequence[Job], address: str) -> None:
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # people keep their data out of git, not out of a run
    environment: dict[str, Any] = {"env_vars": {key: v for key, v in os.environ.items() if key.startswith("PERBIT_")}}
    if any(_has_own(job) for job in jobs):
        environment |= {"working_dir": str(Path.cwd()), "excludes": [*_NOT_SENT, *_folders_below(jobs)]}
    on_kill = signal.getsignal(signal.SIGTERM)
    try:
        _knock(address)
        with warnings.catch_warnings(
            action="ignore", category=FutureWarning
        ):  # Ray's tips are not for the users of perbit
            ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, RayError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PerbitError(f"there is no Ray cluster to be had at {address}: {reason}") from None
    finally:
        signal.signal(signal.SIGTERM, on_kill)  # Ray takes it for itself


def _knock(address: str) -> None:
    """Where nobody listens, Ray itself ends the whole process after a while."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _has_own(job: Job) -> bool:
    """Whether a run needs code or data of the current folder."""
    task = job.task
    named = (task.data, task.model, task.partition, task.loss, task.metric, task.train)
    return any(map(is_import_path, named)) or Path(task.data).is_file()


def _folders_below(jobs: Iterable[Job]) -> list[str]:
    """Where results of this command go, as far as that is in the folder that is sent."""
    here, outputs = Path.cwd(), {job.folder.resolve().parent for job in jobs}
    return [f"/{path.relative_to(here)}" for path in outputs if path != here and path.is_relative_to(here)]


class _Runs:
    """All jobs as tasks: each has one processor, and the cluster decides how many run at once."""

    def __init__(self, jobs: Sequence[Job], show: Show) -> None:
        self.jobs, self.show = list(jobs), show
        self.mailbox, self.mailboxes_left = mailbox_here(), MAX_TRIES
        self.remote = ray.remote(num_cpus=1, max_retries=0)(_run_there)
        self.tries = [0] * len(jobs)
        for job in self.jobs:
            make_folder(job.folder)
            if not job.resume:
                _forget(job.folder)

    def all(self) -> list[Outcome]:
        running = {self.start(index): index for index in range(len(self.jobs))}
        outcomes: dict[int, Outcome] = {}
        while running:
            done, _ = ray.wait(list(running), timeout=SECONDS_BETWEEN_LOOKS)
            self.fetch()
            for task in done:
                index = running.pop(task)
                try:
                    outcomes[index], pieces = ray.get(task)
                except LOST as error:
                    running[self.start_again(index, error)] = index
                else:
                    keep(self.jobs[index].folder, pieces)
        return [outcomes[index] for index in range(len(self.jobs))]

    def start(self, index: int) -> Any:
        self.tries[index] += 1
        job = self.jobs[index]
        files = news(job.folder, {}) if job.resume else []
        return self.remote.remote(index, self.tries[index], job, files, self.mailbox, versions())

    def start_again(self, index: int, error: Exception) -> Any:
        """From the last files that came."""
        if self.tries[index] == MAX_TRIES:
            what = type(error).__name__
            raise PerbitError(
                f"a run was lost {MAX_TRIES} times ({what}); go on with --resume when the cluster is well"
            )
        self.jobs[index] = replace(self.jobs[index], resume=True)
        return self.start(index)

    def fetch(self) -> None:
        """Show and keep what the runs have told, but not what comes late from a try that was lost."""
        try:
            letters = ray.get(self.mailbox.take.remote())
        except ActorDiedError:  # as after a driver that was killed; runs go on, and return what matters
            if self.mailboxes_left == 0:
                raise
            self.mailboxes_left, self.mailbox = self.mailboxes_left - 1, mailbox_here()
            return
        for index, at_try, said in letters:
            if at_try != self.tries[index]:
                continue
            if isinstance(said, Report):
                self.show(said)
            else:
                keep(self.jobs[index].folder, said)


def _explained(error: RayError) -> Exception:
    cause = getattr(error, "cause", None) if isinstance(error, RayTaskError) else None
    if isinstance(cause, PerbitError):
        return cause
    if "No module named 'perbit" in str(error):
        return PerbitError("a node of the cluster has no perbit: install the same version on every node")
    if isinstance(error, ActorDiedError):
        return PerbitError("the cluster ended the process through which runs report; go on with --resume")
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return PerbitError(f"a run failed on the cluster: {lines[-1] if isinstance(error, RayTaskError) else lines[0]}")


def versions() -> dict[str, str]:
    """What decides about bits."""
    return {name: str(importlib.import_module(name).__version__) for name in _LIBRARIES}


# --- files -----------------------------------------------------------------------------------------------------------


def news(folder: Path, sent: dict[str, tuple[int, int]]) -> list[Piece]:
    """What has changed in a run's folder since it was sent. Ledgers come first: a checkpoint must not be ahead of them.

    Args:
        sent: Size and time of every file that the other side has; kept up to date here. Within one run, lines are only added.
    """
    there = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    pieces = []
    for name in sorted(there, key=lambda name: (not name.endswith(".jsonl"), name)):
        about = there[name].stat()
        now, before = (about.st_size, about.st_mtime_ns), sent.get(name)
        if now != before:
            start = before[0] if before and name.endswith(".jsonl") else 0
            pieces.append(Piece(name, start, there[name].read_bytes()[start:]))
            sent[name] = now
    gone = [name for name in sent if name not in there]
    for name in gone:
        del sent[name]
    return pieces + [Piece(name, 0, None) for name in gone]


def keep(folder: Path, pieces: Iterable[Piece]) -> None:
    """Write what came; every file is whole at every moment."""
    for piece in pieces:
        path = folder / piece.name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise FileError(f"a node of the cluster sent a file for {piece.name}, which is outside of {folder}")
        if piece.data is None:
            path.unlink(missing_ok=True)
            continue
        make_folder(path.parent)
        if piece.start:
            with path.open("r+b") as file:
                file.truncate(piece.start)
                file.seek(piece.start)
                file.write(piece.data)
        else:
            write_atomically(path, lambda file, data=piece.data: file.write(data))  # type: ignore[misc]


def _forget(folder: Path) -> None:
    for path in (folder / "result.json", folder / "checkpoint.npz", *folder.glob("frames/*.pbit")):
        path.unlink(missing_ok=True)


# --- on a node -------------------------------------------------------------------------------------------------------


class _Sender:
    """A run's way to the mailbox. Only one letter is under way at a time: a slow driver gets fewer of them, and no run waits for it."""

    def __init__(self, mailbox: Any, job: int, at_try: int) -> None:
        self.mailbox, self.job, self.at_try = mailbox, job, at_try
        self.under_way: list[Any] = []

    def is_free(self) -> bool:
        return not self.under_way or bool(ray.wait(self.under_way, timeout=0)[0])

    def send(self, said: Report | list[Piece]) -> None:
        self.under_way = [self.mailbox.put.remote(News(self.job, self.at_try, said))]

    def finish(self) -> None:
        """Until the last letter has arrived, or is lost with the mailbox: what a run returns is newer."""
        with suppress(ActorDiedError):
            ray.get(self.under_way)


def _run_there(
    index: int, at_try: int, job: Job, files: Sequence[Piece], mailbox: Any, expected: Mapping[str, str]
) -> tuple[Outcome, list[Piece]]:
    """One run in a folder of this node; gives the outcome and the last files."""
    for name, version in versions().items():
        if version != expected[name]:
            where = f"the node {os.uname().nodename}" if hasattr(os, "uname") else "a node"
            raise PerbitError(
                f"{where} has {name} {version} and the driver {expected[name]}: other versions give other results"
            )
    with tempfile.TemporaryDirectory(prefix="perbit-run-") as folder:
        keep(Path(folder), files)
        sent: dict[str, tuple[int, int]] = {}
        due = {"report": 0.0, "files": time.monotonic() + SECONDS_BETWEEN_POSTS}
        sender = _Sender(mailbox, index, at_try)

        def tell(report: Report) -> None:
            now = time.monotonic()
            if report.done == report.rounds:
                sender.send(report)
            elif not sender.is_free():
                return
            elif now >= due["files"]:
                due["files"] = now + SECONDS_BETWEEN_POSTS
                sender.send(news(Path(folder), sent))
            elif now >= due["report"]:
                due["report"] = now + SECONDS_BETWEEN_LOOKS
                sender.send(report)

        outcome = run_job(index, replace(job, folder=Path(folder)), tell)
        sender.finish()
        return outcome, news(Path(folder), sent)
