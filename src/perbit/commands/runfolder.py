"""The folder of a job that can be stopped and go on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perbit.errors import Stopped
from perbit.files import FileError, make_folder


def check_untouched(folder: Path, resume: bool, fresh: bool) -> None:
    """Refuse to discard runs, finished or not, unless the user says what is to become of them."""
    if _runs_in(folder) and not resume and not fresh:
        raise FileError(
            f"{folder} holds runs already: go on with --resume, discard them with --fresh, or choose another folder with -o"
        )


def _runs_in(folder: Path) -> list[Path]:
    """What runs are taken up from."""
    names = ("result.json", "checkpoint.npz")
    return [path for name in names for path in (*folder.glob(name), *folder.glob(f"*/{name}"))]


@contextmanager
def run_folder(folder: Path, fresh: bool = False) -> Iterator[None]:
    """Made if need be, and for this process alone: two writers would mix their lines. Ctrl-C and kill say how to go on.

    Args:
        fresh: discard the runs that it holds.
    """
    make_folder(folder)
    try:
        with _locked(folder), _kill_is_ctrl_c():
            for path in _runs_in(folder) if fresh else ():  # all at once: if this is stopped, none of them is taken up
                path.unlink()
            yield
    except KeyboardInterrupt:
        raise Stopped("stopped; the same command with --resume goes on from here") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder itself is locked, so nothing is left behind however the process ends. Where there are no locks, go on without."""
    if os.name != "posix":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileError(f"another perbit is at work in {folder}") from None
    except OSError:
        return  # a file system without locks, as some network folders are


@contextmanager
def _kill_is_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
