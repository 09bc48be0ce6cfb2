"""Files are written whole or not at all, with the modes they should have, and what a killed writer left goes, and only that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from perbit import files, presets
from perbit.session import ClientSession, ServerSession
from session_exchange import kind

HALF_WRITTEN = """
import sys, time
from pathlib import Path
from perbit import files

def write(file):
    file.write(b"half of it")
    file.flush()
    print("writing", flush=True)
    time.sleep(600)

files.write_atomically(Path(sys.argv[1]), write)
"""


def writing(path: Path) -> subprocess.Popen[str]:
    """A process that stands still in the middle of writing a file."""
    process = subprocess.Popen([sys.executable, "-c", HALF_WRITTEN, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_writer_left_goes_with_the_next_writing(tmp_path: Path) -> None:
    path = tmp_path / "x[1].json"
    for other in (".x[1].json.1234", ".x[1].json_perbit", ".x1.json.1234_perbit", "x.json.1234_perbit"):
        (tmp_path / other).write_text("a file of somebody else")
    others = names(tmp_path)
    process = writing(path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(names(tmp_path)) == len(others) + 1
    files.write_json(path, {"whole": True})
    assert names(tmp_path) == sorted([*others, path.name])


def test_who_still_writes_is_left_alone(tmp_path: Path) -> None:
    process = writing(tmp_path / "x.json")
    try:
        before = names(tmp_path)
        files.write_json(tmp_path / "x.json", {"mine": True})
        assert names(tmp_path) == sorted([*before, "x.json"])
    finally:
        process.kill()
        process.communicate()


def test_a_file_has_the_mode_that_the_user_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(b"x")

    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.delattr("os.umask")  # another thread would make files with whatever it is for a moment
            files.write_atomically(tmp_path / "shared", write)
            files.write_atomically(tmp_path / "private", write, private=True)
    finally:
        os.umask(before)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import test_files

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
test_files.exchange_on_a_full_disk(
    Path(sys.argv[1]), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
)
"""


def exchange_on_a_full_disk(folder: Path, make_room: object) -> None:
    """A client that can write nothing stays where it was, and needs no full model when there is room again."""
    import resource

    assert callable(make_room)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    make_room()
    server, client = ServerSession(presets.mcm("qsgd(7) | rans"), seed=0), ClientSession(folder)

    def model(k: int) -> dict[str, np.ndarray]:
        return {"w": np.random.default_rng(k).normal(size=5000).astype(np.float32)}

    client.receive(server.send("c", model(0)))
    server.receive("c", client.reply(model(1)))
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    before = names(folder)
    for _ in range(3):
        client.receive(server.send("c", model(2)))
        with pytest.raises(files.FileError, match="too large"):
            client.reply(model(3))
        assert client.digest == server.digest("c")
        assert names(folder) == before
        assert ClientSession(folder).digest == client.digest  # nor did the files lose anything
    make_room()
    frame = server.send("c", model(2))
    assert kind(frame) == "DELTA"
    client = ClientSession(folder)
    client.receive(frame)
    server.receive("c", client.reply(model(3)))
    assert client.digest == server.digest("c")
    assert server.n_resyncs == 0


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "own")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
