"""Where a node keeps what it remembers: a folder for each run, marked as perbit's, deleted when the run is over.

Nothing else is ever deleted: a folder must have the mark, and only files of perbit's names in it are touched.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from perbit.files import FileError, write_atomically
from perbit.printing import logger

LOG = logger("flwr.perbit")
HOME = "run"  # the file of a server that holds the secret under which its nodes keep their state
MARK = "perbit-state"  # the file that says whose folder this is
LONG_OVER = 7 * 24 * 3600  # seconds without a change after which a run is taken for over
_SECRET = re.compile(r"[0-9a-f]{32}")
_RUN_AND_NODE = re.compile(r"(\d+|[0-9a-f]{32})-\d+")
# with what a killed process left half written
_STATE_FILE = re.compile(r"\.?(state-[01]|anchor-[0-9a-f]+)\.npz(\.\w+)?")


def root_of(folder: str | Path | None) -> Path:
    """Where all runs are kept: as given, PERBIT_STATE, or perbit in the user's state directory."""
    if given := folder or os.environ.get("PERBIT_STATE"):
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "perbit"


def path_of(root: Path, run: int | str, node_id: int) -> Path:
    """The folder of one node in one run."""
    return root / f"{run}-{node_id}"


def name_of(secret: object) -> str | None:
    """The run that a server's secret names; None if it is no secret. A hash, so that who can list the folders cannot name one."""
    is_one = isinstance(secret, str) and _SECRET.fullmatch(secret) is not None
    return hashlib.sha256(str(secret).encode()).hexdigest()[:32] if is_one else None


def home_secret(folder: Path) -> str:
    """Under which secret the nodes of a server keep their state: a server that is started again has another run's number, and no other
    ServerApp on the same nodes may name what they keep."""
    path = folder / HOME
    with suppress(FileNotFoundError, UnicodeDecodeError):
        if _SECRET.fullmatch(found := path.read_text()):
            return found
    secret = secrets.token_hex(16)
    write_atomically(path, lambda file: file.write(secret.encode()), private=True)
    return secret


def forget_home(folder: str | None) -> None:
    """The run is over."""
    if folder is not None:
        (Path(folder) / HOME).unlink(missing_ok=True)


def make(folder: Path) -> Path:
    """Make and mark a folder unless it is there; with a new one, what runs left that are long over goes."""
    try:
        folder.mkdir(parents=True, mode=0o700)
        (folder / MARK).write_text("What a Flower node remembers of one run; perbit deletes it when the run is over.\n")
    except FileExistsError:
        return folder
    except OSError as error:
        raise FileError(f"cannot write to {folder}: {error.strerror}") from error
    remove_old(folder.parent)
    return folder


def remove(folder: Path) -> None:
    """Delete perbit's files in a folder of perbit's, and the folder if nothing else is in it."""
    if not _is_ours(folder):
        return
    try:
        for path in folder.iterdir():
            if _STATE_FILE.fullmatch(path.name):
                path.unlink(missing_ok=True)
        if [path.name for path in folder.iterdir()] == [MARK]:
            (folder / MARK).unlink(missing_ok=True)
            folder.rmdir()
    except OSError as error:
        LOG.info("perbit: %s stays: %s", folder, error.strerror)


def remove_old(root: Path, seconds: float = LONG_OVER) -> None:
    """Delete what runs left whose end this node was not told: those that nothing was written for so long."""
    for folder in root.iterdir():
        if _RUN_AND_NODE.fullmatch(folder.name) and _is_ours(folder) and _age(folder) > seconds:
            remove(folder)


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and (folder / MARK).is_file()


def _age(folder: Path) -> float:
    """Seconds since the last change; a folder that vanishes meanwhile is young."""
    try:
        return time.time() - max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return 0.0
