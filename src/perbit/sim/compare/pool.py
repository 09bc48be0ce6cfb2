"""Runs side by side in processes of their own, each with one thread. If the parent goes, by ctrl-C or kill -9, they go at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

from perbit.errors import PerbitError
from perbit.sim.federated import run as federated_run
from perbit.sim.federated.rounds import Federation
from perbit.sim.federated.runs import Outcome, Progress
from perbit.sim.federated.settings import Method, Task

SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    task: Task
    method: Method
    seed: int
    folder: Path
    resume: bool = False
    until: int | None = None
    dump_frames: bool = False
    with_statistics: bool = False


class Report(NamedTuple):
    """What a run tells while it goes."""

    job: int
    done: int
    rounds: int
    accuracy: float
    n_bytes: int  # up


Show = Callable[[Report], None]


def run_all(jobs: Sequence[Job], n_processes: int, show: Show) -> list[Outcome]:
    """All outcomes, in the order of the jobs; the first error stops everything."""
    if n_processes == 1 or len(jobs) == 1:
        return [run_job(index, job, show) for index, job in enumerate(jobs)]
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    children_end, own_end = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(
        min(n_processes, len(jobs)), context, initializer=_start, initargs=(reports, children_end)
    )
    try:
        futures = [executor.submit(_run_here, index, job) for index, job in enumerate(jobs)]
        _watch(futures, reports, show)
        executor.shutdown()  # a process that is still starting needs what the parent holds
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise PerbitError(
            "a run was killed (out of memory?); go on with --resume, fewer --processes may help"
        ) from None
    finally:
        own_end.close()  # any run that is still going ends here
        executor.shutdown(wait=False, cancel_futures=True)


def _watch(futures: list[Future[Outcome]], reports: Any, show: Show) -> None:
    """Pass reports on until all is done or something failed."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
        for future in done:
            future.result()  # raises what the run raised
        try:
            while True:
                show(reports.get_nowait())
        except Empty:
            pass


def run_job(index: int, job: Job, show: Show) -> Outcome:
    """One run, in this process."""

    def watch(now: Progress, federation: Federation) -> None:
        show(Report(index, now.done, job.until or job.task.rounds, now.last.accuracy, now.bytes_up))

    return federated_run(
        job.task,
        job.method,
        job.seed,
        job.folder,
        resume=job.resume,
        until=job.until,
        dump_frames=job.dump_frames,
        with_statistics=job.with_statistics,
        watch=watch,
    )


# --- in the child ----------------------------------------------------------------------------------------------------

_reports: Any = None


def _start(reports: Any, parent: Any) -> None:
    global _reports
    _reports = reports
    for asked_to_end in (signal.SIGINT, signal.SIGTERM):  # the parent's business, also when the whole group is told
        signal.signal(asked_to_end, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: Any) -> None:
    try:
        parent.recv()
    except (EOFError, OSError):
        os._exit(1)  # at once: files are whole at every moment


def _run_here(index: int, job: Job) -> Outcome:
    last_sent = 0.0

    def send(report: Report) -> None:
        nonlocal last_sent
        if report.done == report.rounds or time.monotonic() - last_sent > SECONDS_BETWEEN_LOOKS:
            last_sent = time.monotonic()
            _reports.put(report)

    return run_job(index, job, send)
